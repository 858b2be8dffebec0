import json

import pytest
from click.testing import Result
from support.cli_calls import RunCommand
from support.fake_machine import clusters

PATHS = [
    {"source": "brno-h1", "target": "praha-h1", "result": "passes"},
    {"source": "praha-h1", "target": "brno-h1", "result": "passes"},
]
PASSED = {"key": "demo", "id": "4c1f", "mtu": 1450, "mtus": {"brno-h1": 1450, "praha-h1": 1450}, "paths": PATHS}
SECTION = {"after": "brno-sw1:p1", "before": "praha-sw1:uplink", "ports": ["brno-sw1:uplink"]}
LOST = {**PATHS[0], "result": "only-small", "section": SECTION}
SILENT = {"host": "plzen-h1", "reason": "its agent is not reachable (last contact 2026-11-23 07:00:00 UTC)"}


@pytest.fixture
def verify(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> "VerifyDemo":
    run("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")
    return VerifyDemo(run, monkeypatch)


class VerifyDemo:
    """Runs ``cluster verify``. SBF's answer is `PASSED`, in which a test's keyword arguments replace values."""

    def __init__(self, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self._monkeypatch = run, monkeypatch

    def __call__(self, *options: str, **answer: object) -> Result:
        self._monkeypatch.setitem(clusters.DOCUMENTS, "/v1/clusters/demo/verify", PASSED | answer)
        return self._run("cluster", "verify", "demo", *options)


def test_passing_paths_end_with_code_0(verify: VerifyDemo) -> None:
    result = verify()
    assert (result.exit_code, result.output) == (
        0,
        "cluster demo: 2 paths between 2 hosts carry packets of 1450 bytes\n",
    )


def test_a_failed_path_is_listed_with_its_section(verify: VerifyDemo) -> None:
    result = verify(paths=[LOST, PATHS[1]])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].split("  ") == [
        "brno-h1",
        "praha-h1",
        "packets of 64 bytes pass, packets of 1450 bytes do not (MTU)",
        "after brno-sw1:p1; at brno-sw1:uplink; before praha-sw1:uplink",
    ]


def test_a_silent_host_is_named_with_its_last_contact(verify: VerifyDemo) -> None:
    result = verify(unverified=[SILENT])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "host plzen-h1 did not take part: its agent is not reachable (last contact 2026-11-23 07:00:00 UTC)"
    )


def test_notes_about_elements_are_printed(verify: VerifyDemo) -> None:
    assert (
        "switch brno-sw1: VLAN 100 is missing on p1\n"
        in verify(notes=["switch brno-sw1: VLAN 100 is missing on p1"]).stdout
    )


def test_hosts_with_different_mtus_are_listed(verify: VerifyDemo) -> None:
    result = verify(mtus={"brno-h1": 9000, "praha-h1": 1450})
    assert "the MTU of the cluster's bridge differs: 9000 on brno-h1, 1450 on praha-h1\n" in result.stdout


def test_json_contains_every_path(verify: VerifyDemo) -> None:
    result = verify("--json", paths=[LOST, PATHS[1]])
    assert (result.exit_code, [path["result"] for path in json.loads(result.stdout)["paths"]]) == (
        1,
        ["only-small", "passes"],
    )


def test_an_unknown_cluster_ends_with_code_2(run: RunCommand) -> None:
    assert run("cluster", "verify", "absent").exit_code == 2
