"""Tests of the systemd units."""

import re
from pathlib import Path

import click
import pytest

from sbf_command import main as sbf
from virtcloud.agent.gateway import ssh_sessions
from virtcloud.agent.guest_access import session_listener
from virtcloud.cli import main as virtcloud

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "setup/systemd").glob("*.service"))
PROGRAMS = {"sbf": sbf, "virtcloud": virtcloud}


def start(unit: Path) -> list[str]:
    commands = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    assert len(commands) == 1
    return str(commands[0]).split()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_an_existing_command_with_valid_options(unit: Path) -> None:
    program, name, option, settings = start(unit)
    group = PROGRAMS[Path(program).name]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    options = [name for parameter in command.params for name in parameter.opts]
    assert (option in options, Path(settings).parent) == (True, Path("/etc/virtcloud"))


def test_a_restart_of_the_agent_leaves_processes_of_jobs() -> None:
    assert "\nKillMode=process\n" in (ROOT / "setup/systemd/virtcloud-agent.service").read_text()


def test_the_agent_may_open_files_for_all_connections() -> None:
    (limit,) = re.findall(r"\nLimitNOFILE=(\d+)\n", (ROOT / "setup/systemd/virtcloud-agent.service").read_text())
    assert int(limit) > ssh_sessions.MAX_SESSIONS + 4 * session_listener.MAX_SESSIONS


def test_units_named_in_messages_and_pages_exist() -> None:
    texts = [*ROOT.glob("virtcloud/**/*.py"), *ROOT.glob("docs/**/*.md")]
    names = {name for text in texts for name in re.findall(r"virtcloud-(?:sbf|agent)\b", text.read_text())}
    assert names == {unit.stem for unit in UNITS}
