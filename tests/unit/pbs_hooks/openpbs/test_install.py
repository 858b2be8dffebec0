import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.batch_fakes.pbs_server import FakePbsServer, with_program

from pbs_hooks.openpbs import install, qmgr
from pbs_hooks.openpbs.install import HookSources, RequestedSettings
from pbs_hooks.openpbs.qmgr import PbsInstallation, list_jobs_with_cluster
from pbs_hooks.openpbs.server_state import PROGRAM_TYPE, SETTINGS_TYPE, InstallationChange
from virtcloud.cli.pbs import install as install_command
from virtcloud.model.errors import BadInput, Conflict, NotFound, Refused, SchedulerUnavailable, Unsafe

STUB = "import pbs\npbs.event().accept()\n"
MOM_EVENTS = (
    "execjob_begin,execjob_prologue,execjob_end,execjob_preterm,execjob_launch,execjob_abort,"
    "exechost_periodic,exechost_startup"
)
REQUESTED = RequestedSettings({"server": {"sbf": "https://sbf.example", "token_file": "/etc/virtcloud/pbs.token"}})


@pytest.fixture
def installation(tmp_path: Path) -> PbsInstallation:
    return with_python(tmp_path, "echo 3.6")


def with_python(folder: Path, script: str) -> PbsInstallation:
    return with_script(PbsInstallation(folder, folder), "pbs_python", script)


def with_script(installation: PbsInstallation, name: str, script: str) -> PbsInstallation:
    program = installation.exec / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return installation


def check(kind: str, keys: install.SettingValues) -> None:
    if unknown := set(keys) - {"sbf", "token_file", "socket"}:
        raise BadInput(f"{kind}: {unknown.pop()}: unknown")


def sources(program: str = STUB) -> HookSources:
    return HookSources(lambda _: program, check)


def changes(
    server: FakePbsServer, installation: PbsInstallation, requested: RequestedSettings = REQUESTED, program: str = STUB
) -> list[InstallationChange]:
    return install.plan_installation(server, installation, sources(program), requested)


def apply(server: FakePbsServer, planned: list[InstallationChange]) -> None:
    for change in planned:
        qmgr.apply_change(server, change)


def installed(installation: PbsInstallation, program: str = STUB) -> FakePbsServer:
    server = FakePbsServer()
    apply(server, changes(server, installation, program=program))
    server.changes.clear()
    return server


def test_an_empty_server_gets_resources_and_hooks_in_this_order(installation: PbsInstallation) -> None:
    server = FakePbsServer()
    apply(server, changes(server, installation))
    assert server.changes == [
        "create resource vcluster type=string,flag=m",
        "create resource vcluster_spec type=string,flag=im",
        "create hook virtcloud_server",
        "import hook virtcloud_server application/x-config",
        'set hook virtcloud_server event = "queuejob,modifyjob,runjob,jobobit"',
        "set hook virtcloud_server alarm = 5",
        "set hook virtcloud_server enabled = true",
        "set hook virtcloud_server fail_action = none",
        "set hook virtcloud_server order = 900",
        "set hook virtcloud_server type = site",
        "set hook virtcloud_server user = pbsadmin",
        "import hook virtcloud_server application/x-python",
        "create hook virtcloud_mom",
        "import hook virtcloud_mom application/x-config",
        f'set hook virtcloud_mom event = "{MOM_EVENTS}"',
        "set hook virtcloud_mom alarm = 600",
        "set hook virtcloud_mom enabled = true",
        'set hook virtcloud_mom fail_action = "offline_vnodes,clear_vnodes_upon_recovery"',
        "set hook virtcloud_mom freq = 60",
        "set hook virtcloud_mom order = 900",
        "set hook virtcloud_mom type = site",
        "set hook virtcloud_mom user = pbsadmin",
        "import hook virtcloud_mom application/x-python",
    ]


def test_installing_again_changes_nothing(installation: PbsInstallation) -> None:
    server = installed(installation)
    assert changes(server, installation) == []
    assert changes(server, installation, RequestedSettings()) == []


@pytest.mark.parametrize("step", range(23))
def test_the_next_installation_completes_a_killed_one(installation: PbsInstallation, step: int) -> None:
    server = FakePbsServer(dies_at=step)
    with pytest.raises(Refused, match="killed here"):
        apply(server, changes(server, installation))
    server.dies_at = None
    apply(server, changes(server, installation))
    complete = installed(installation)
    assert (server.hooks, server.files, server.resources) == (complete.hooks, complete.files, complete.resources)


def test_only_attributes_that_differ_are_changed(installation: PbsInstallation) -> None:
    server = installed(installation)
    server.hooks["virtcloud_mom"].update(enabled="false", alarm="30")
    assert [change.description for change in changes(server, installation)] == [
        "hook virtcloud_mom: alarm = 600 (was 30)",
        "hook virtcloud_mom: enabled = true (was false)",
    ]


def test_the_attribute_debug_is_left_unchanged(installation: PbsInstallation) -> None:
    """An administrator may have set ``debug = true`` to record input files for replay."""
    server = installed(installation)
    server.hooks["virtcloud_mom"]["debug"] = "true"
    assert changes(server, installation) == []


def test_a_new_program_is_shown_by_its_digest(installation: PbsInstallation) -> None:
    descriptions = [
        change.description for change in changes(installed(installation), installation, program=STUB + "# newer\n")
    ]
    assert [text.split(": program ")[0] for text in descriptions] == ["hook virtcloud_server", "hook virtcloud_mom"]
    assert len(set(descriptions[0].split(": program ")[1].split(" becomes "))) == 2


def test_a_new_setting_does_not_change_other_settings(installation: PbsInstallation) -> None:
    descriptions = [
        change.description
        for change in changes(
            installed(installation), installation, RequestedSettings({"server": {"sbf": "https://other.example"}})
        )
    ]
    assert descriptions == [
        'hook virtcloud_server: settings\n  -sbf = "https://sbf.example"\n  +sbf = "https://other.example"',
    ]


def test_unknown_settings_are_refused_by_name(installation: PbsInstallation) -> None:
    server = FakePbsServer()
    with pytest.raises(BadInput, match="server: fsb: unknown"):
        changes(server, installation, RequestedSettings({"server": {"fsb": "x"}}))
    assert server.changes == []


@pytest.mark.parametrize("text", ["{bad", "[1]", '["a"]', "null"])
def test_invalid_settings_on_the_server_are_refused(installation: PbsInstallation, text: str) -> None:
    server = installed(installation)
    server.files["virtcloud_mom", SETTINGS_TYPE] = text
    with pytest.raises(BadInput, match="hook virtcloud_mom: expected its settings as a JSON object, got"):
        changes(server, installation)


def test_a_resource_of_another_type_is_left_unchanged(installation: PbsInstallation) -> None:
    server = FakePbsServer(resources={"vcluster": "type=long,flag=nh"})
    with pytest.raises(Unsafe, match="resource vcluster: expected type=string, flag=m, got type=long, flag=hn; left"):
        changes(server, installation)
    assert server.changes == []


def test_a_foreign_hook_with_virtclouds_name_is_left_unchanged(installation: PbsInstallation) -> None:
    server = with_program(FakePbsServer(), "virtcloud_mom", "import pbs\n")
    with pytest.raises(Unsafe, match="hook virtcloud_mom: expected a hook that 'virtcloud pbs install' wrote"):
        changes(server, installation)
    with pytest.raises(Unsafe, match="hook virtcloud_mom"):
        install.plan_removal(server, list, force=True)
    assert server.changes == []


def test_a_program_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    server, installation = FakePbsServer(), with_python(tmp_path, f'exec {sys.executable} "$@"')
    with pytest.raises(
        BadInput, match=r"hook virtcloud_server: expected a program that Python 3.* can compile, got: Syntax"
    ):
        changes(server, installation, program="if (\n")
    assert server.changes == []


def test_a_server_with_an_old_python_is_refused(tmp_path: Path) -> None:
    """OpenPBS before version 20 embeds Python 2."""
    with pytest.raises(Refused, match=r"expected an OpenPBS with Python 3\.6 or later, got 2\.7"):
        changes(FakePbsServer(), with_python(tmp_path, "echo 2.7"))


def test_hooks_are_removed_before_resources(installation: PbsInstallation) -> None:
    server = installed(installation)
    server.resources["other"] = "type=long,flag=h"
    assert install.apply_removal(server, install.plan_removal(server, list, force=False)) == []
    assert server.changes == [
        "delete hook virtcloud_server",
        "delete hook virtcloud_mom",
        "delete resource vcluster",
        "delete resource vcluster_spec",
    ]
    assert install.plan_removal(server, list, force=False) == []


def test_removal_is_refused_while_jobs_run_with_a_cluster(installation: PbsInstallation) -> None:
    server = installed(installation)
    with pytest.raises(Conflict, match=r"^jobs run with a cluster \(12.pbssrv\): without"):
        install.plan_removal(server, lambda: ["12.pbssrv"], force=False)
    assert len(install.plan_removal(server, lambda: ["12.pbssrv"], force=True)) == 4


def test_jobs_are_not_listed_without_virtclouds_resource(installation: PbsInstallation) -> None:
    server = installed(installation)
    del server.resources["vcluster"]
    calls: list[str] = []
    assert len(install.plan_removal(server, lambda: calls.append("call") or [], force=False)) == 3
    assert calls == []


def test_a_resource_of_finished_jobs_is_kept_and_reported(installation: PbsInstallation) -> None:
    server = installed(installation)
    server.busy = True
    kept = install.apply_removal(server, install.plan_removal(server, list, force=False))
    assert kept == ["qmgr -c 'delete resource vcluster': the PBS server answered: Resource busy on job"]
    assert server.hooks == {}
    assert list(server.resources) == ["vcluster"]


def test_a_foreign_resource_is_not_removed(installation: PbsInstallation) -> None:
    server = FakePbsServer(resources={"vcluster": "type=long,flag=nh"})
    assert install.plan_removal(server, list, force=False) == []


@pytest.mark.parametrize(("script", "jobs"), [("echo 12.s; echo 14.s", ["12.s", "14.s"]), ("true", [])])
def test_jobs_with_a_cluster_are_listed_by_qselect(installation: PbsInstallation, script: str, jobs: list[str]) -> None:
    assert list_jobs_with_cluster(with_script(installation, "qselect", script)) == jobs


@pytest.mark.parametrize("script", ["exit 1", "echo 'qselect: cannot connect to server s (errno=111)' >&2; exit 111"])
def test_a_failed_list_of_jobs_stops_the_removal(installation: PbsInstallation, script: str) -> None:
    with pytest.raises(SchedulerUnavailable, match="the jobs with a cluster are unknown"):
        list_jobs_with_cluster(with_script(installation, "qselect", script))


def test_a_missing_pbs_conf_is_reported(installation: PbsInstallation) -> None:
    script = "echo 'pbsconf error: pbs conf variables not found: PBS_HOME\nFailed to load pbs.conf file' >&2; exit 1"
    with pytest.raises(
        NotFound, match=r"expected its address in /etc/pbs.conf, or in the file that PBS_CONF_FILE names"
    ):
        qmgr.Qmgr(with_script(installation, "qmgr", script)).run_line("list hook")


def test_an_imported_program_is_exported_unchanged(installation: PbsInstallation) -> None:
    first, _, rest = installed(installation).files["virtcloud_server", PROGRAM_TYPE].partition("\n")
    assert first == "# Written by 'virtcloud pbs install'; changes are lost. Bundle 5a02c9030790."
    assert rest == STUB


IMPORT = """
import sys
from pathlib import Path
from pbs_hooks.openpbs.qmgr import PbsInstallation, Qmgr
Qmgr(PbsInstallation(Path(sys.argv[1]), Path())).import_text("h", "application/x-python", "# \\u00f6")
"""
ASCII_LOCALE = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": "/usr/bin:/bin"}


def test_hooks_are_utf_8_in_every_locale(installation: PbsInstallation) -> None:
    """The licence in the server's hook has letters outside ASCII. PBS's Python reads programs as UTF-8."""
    copy = installation.home / "imported.py"
    with_script(installation, "qmgr", f'for path in $2; do :; done; cp "$path" {copy}; cat "$path"')
    command = [sys.executable, "-c", IMPORT, str(installation.exec)]
    subprocess.run(command, check=True, env=ASCII_LOCALE, cwd=Path(__file__).parents[4])  # noqa: S603
    assert copy.read_bytes() == b"# \xc3\xb6"


def test_a_missing_file_of_settings_is_named_with_the_reason(tmp_path: Path) -> None:
    error = CliRunner().invoke(install_command, ["--settings", str(tmp_path / "hooks.json")]).exception
    assert isinstance(error, BadInput)
    assert str(error) == f"settings {tmp_path}/hooks.json: cannot be read: No such file or directory"
