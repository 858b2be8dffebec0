"""Tests of the faults of PBS hosts that ``virtcloud pbs status`` detects on the PBS server's host."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.batch_fakes.pbs_server import FakePbsServer, with_program

from pbs_hooks.openpbs import hook_status, install
from pbs_hooks.openpbs.install import HookSources
from pbs_hooks.openpbs.qmgr import PbsInstallation
from pbs_hooks.openpbs.server_state import SETTINGS_TYPE, PbsHook, ServerState
from virtcloud.jobs.host_names import element_of_host
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView
from virtcloud.model.errors import BadInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACKING = """n1:15002 virtcloud_mom 1 12
n2:15002 virtcloud_mom 1 12
n1:15002 virtcloud_mom 0 12
n2:15002 other 0 11
n3:15002 other 35 11
"""


def element(name: str, *, seen: timedelta | None = timedelta(), trouble: str | None = None) -> ElementView:
    return ElementView(
        name=name,
        kind=ElementKind.HOST,
        site="brno",
        wanted_revision=1,
        confirmed_revision=1,
        trouble=trouble,
        last_seen=None if seen is None else NOW - seen,
    )


def test_a_host_lacks_its_copy_until_the_transfer_is_done() -> None:
    assert hook_status.find_hosts_without_copy(TRACKING, "virtcloud_mom") == ["n2"]


@pytest.mark.parametrize("settings", ["[1]", "null", "not JSON"])
def test_settings_that_are_no_object_count_as_missing(settings: str) -> None:
    server = ServerState(hooks={"virtcloud_mom": PbsHook("virtcloud_mom", {}, "", settings)})
    assert hook_status.read_hook_settings(server, "virtcloud_mom") == {}


def test_an_empty_tracking_file_lists_no_host() -> None:
    assert hook_status.find_hosts_without_copy("\nrubbish\n", "virtcloud_mom") == []


def test_hosts_have_lower_case_names_up_to_the_dot() -> None:
    names = {"node7": "brno-h1"}
    assert [element_of_host(one, names) for one in ("N1.example.org", "node7")] == ["n1", "brno-h1"]


def test_each_faulty_host_is_listed_with_its_fault() -> None:
    elements = [
        element("n1"),
        element("n3", seen=None),
        element("n4", seen=timedelta(minutes=4)),
        element("n5", trouble="no space left"),
    ]
    assert list(hook_status.find_host_faults(["n1", "n2", "n3", "n4", "n5"], {}, elements, NOW)) == [
        ("n2", "SBF has no host n2: jobs with a cluster cannot run there"),
        ("n3", "its agent has never called SBF: is 'virtcloud agent' installed and running there?"),
        ("n4", "its agent is stale: last call 2025-12-31 23:56:00 UTC; read its log there"),
        ("n5", "its agent reports: no space left"),
    ]


class OneNodeServer:
    """A PBS server with the node n1."""

    def run_line(self, line: str) -> str:
        return "Node n1\n"

    def import_text(self, hook: str, kind: str, text: str) -> None:
        raise AssertionError(f"{kind} of {hook}")


@pytest.mark.parametrize("hosts", [None, ["n1"], {"n1": 1}])
def test_an_invalid_setting_of_hosts_is_reported_and_ignored(hosts: object) -> None:
    with pytest.raises(BadInput, match="mom: the hook's setting hosts: expected an object"):
        install.check_settings("mom", {"hosts": hosts})
    findings = hook_status._check_hosts(OneNodeServer(), {"hosts": hosts}, [element("n1")], NOW)
    assert [finding.seen for finding in findings] == ["1 of 1 are in SBF and have a running agent"]


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        (
            "virtcloud_server",
            [("hosts", "1 of 1 are in SBF and have a running agent")],
        ),
        (
            "virtcloud_mom",
            [
                ("host n1", "SBF has no host n1: jobs with a cluster cannot run there"),
                ("hosts", "0 of 1 are in SBF and have a running agent"),
            ],
        ),
    ],
)
def test_hosts_have_the_names_of_the_server_hooks_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, found: list[tuple[str, str]]
) -> None:
    """No job with a cluster starts on n1 if only the MoM hook's settings map n1 to SBF's name of this host."""
    installed = FakePbsServer(nodes=("n1",))
    for name in ("virtcloud_server", "virtcloud_mom"):
        with_program(installed, name, "")
        installed.files[name, SETTINGS_TYPE] = json.dumps({"hosts": {"n1": "brno-h1"}} if name == hook else {})
    monkeypatch.setattr(hook_status, "_read_elements", lambda _: [element("brno-h1")])
    findings = hook_status.check_installation(
        installed,
        PbsInstallation(tmp_path, tmp_path),
        HookSources(lambda _: "", lambda *_: None),
        tmp_path / "status.json",
        NOW,
    )
    assert [(one.subject, one.seen) for one in findings if one.subject.startswith("host")] == found


@pytest.mark.parametrize("name", ["sbf", "token_file", "ca_file"])
def test_an_invalid_setting_of_the_connection_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"the hook's setting {name}: expected .*, got 5"):
        hook_status._read_elements({"sbf": "http://127.0.0.1:1", name: 5})
