import re
from pathlib import Path

import click
import pytest

from sbf_command import main as sbf
from sbf_service import image_files
from sbf_service.settings import DEFAULT_DATABASE
from sbf_service.store.maintenance import retention
from virtcloud.agent.gateway import ssh_sessions
from virtcloud.agent.guest_access import session_listener
from virtcloud.agent.settings import AgentSettings
from virtcloud.cli import main as virtcloud
from virtcloud.client.agent_client import DEFAULT_URL

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "setup/systemd").glob("*.service"))
SBF = ROOT / "setup/systemd/virtcloud-sbf.service"
OWNED = {"State": "/var/lib", "Runtime": "/run", "Cache": "/var/cache", "Logs": "/var/log", "Configuration": "/etc"}
"""Parents of the folders whose contents systemd gives to the user of a service, by the option's name."""
PROGRAMS = {"sbf": sbf, "virtcloud": virtcloud}


def start(unit: Path) -> list[str]:
    commands = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    assert len(commands) == 1
    return str(commands[0]).split()


def options(unit: Path, name: str) -> list[str]:
    return " ".join(re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)).split()


def agent_folders() -> set[Path]:
    paths = {Path(field.default) for field in AgentSettings.model_fields.values() if isinstance(field.default, Path)}
    assert Path("/var/lib/virtcloud/agent") in paths
    return paths


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_an_existing_command_with_valid_options(unit: Path) -> None:
    program, name, option, settings = start(unit)
    group = PROGRAMS[Path(program).name]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    known = [name for parameter in command.params for name in parameter.opts]
    assert (option in known, Path(settings).parent) == (True, Path("/etc/virtcloud"))


def test_a_restart_of_the_agent_leaves_processes_of_jobs() -> None:
    assert "\nKillMode=process\n" in (ROOT / "setup/systemd/virtcloud-agent.service").read_text()


@pytest.mark.parametrize("unit", [unit for unit in UNITS if options(unit, "User")], ids=lambda unit: unit.name)
def test_systemd_gives_no_file_of_the_agent_to_another_user(unit: Path) -> None:
    owned = {Path(parent, name) for kind, parent in OWNED.items() for name in options(unit, f"{kind}Directory")}
    assert [path for path in agent_folders() if owned & {path, *path.parents}] == []


def test_sbf_creates_its_folders_and_may_write_to_them() -> None:
    files = [Path(DEFAULT_DATABASE.removeprefix("sqlite:///")), Path(DEFAULT_URL.removeprefix("unix://"))]
    folders = [str(file.parent) for file in files]
    command = "+/usr/bin/install -d -m 755 -o virtcloud -g virtcloud"  # changes no file in the folders
    assert options(SBF, "ExecStartPre") == [*command.split(), *folders]
    assert options(SBF, "ReadWritePaths") == [f"-{folder}" for folder in folders]
    assert {image_files.DEFAULT_FOLDER.parent, retention.DEFAULT_FOLDER.parent} == {files[0].parent}


def test_sbf_cannot_replace_the_folders_of_an_agent() -> None:
    folders = {Path(path.removeprefix("-")) for path in options(SBF, "InaccessiblePaths")}
    settings = AgentSettings.model_fields
    assert folders == {settings[name].default for name in ("state", "jobs", "namespaces")}
    assert options(SBF, "ReadOnlyPaths") == [f"-{settings['images'].default}"]


def test_the_agent_may_open_files_for_all_connections() -> None:
    (limit,) = re.findall(r"\nLimitNOFILE=(\d+)\n", (ROOT / "setup/systemd/virtcloud-agent.service").read_text())
    assert int(limit) > ssh_sessions.MAX_SESSIONS + 4 * session_listener.MAX_SESSIONS


def test_units_named_in_messages_and_pages_exist() -> None:
    texts = [*ROOT.glob("virtcloud/**/*.py"), *ROOT.glob("docs/**/*.md")]
    names = {name for text in texts for name in re.findall(r"virtcloud-(?:sbf|agent)\b", text.read_text())}
    assert names == {unit.stem for unit in UNITS}
