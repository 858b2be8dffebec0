import json
from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, SWITCH, FakeSbf

CHANGE = {"create": "100", "add": {"p1": "100"}, "remove": {"p2": "139"}}
DIFFERENCE: dict[str, Any] = {
    "element": "brno-sw",
    "kind": "switch",
    "site": "brno",
    "switch": CHANGE,
    "lines": ["vlan 100"],
}
HOST: dict[str, Any] = {
    "element": "brno-h1",
    "kind": "host",
    "site": "brno",
    "host": {
        "add": [
            {
                "key": "demo",
                "vlan": 100,
                "port": "eth0",
                "guests": [{"name": "g1", "host": "brno-h1", "image": "busybox"}],
            }
        ],
        "remove": ["old"],
    },
}


def test_a_dry_run_prints_changes_and_creates_nothing(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.preview = {"key": "demo", "created": True, "vlans": {"brno": 100}, "elements": [DIFFERENCE, HOST]}
    result = run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox", "--dry-run")
    assert result.stdout.splitlines() == [
        "cluster demo would be created with VLAN 100 at brno; nothing was changed",
        "switch brno-sw at brno, never read:",
        "  - p2: VLAN 139",
        "  + VLAN 100",
        "  + p1: VLAN 100",
        "commands that would be sent:",
        "  vlan 100",
        "host brno-h1 at brno, never reported:",
        "  - cluster old",
        "  + eth0: VLAN 100 for cluster demo",
        "  + guest g1 (busybox, 256 MiB, 1 CPU)",
    ]
    assert sbf.clusters == {}


def test_a_difference_is_shown_as_json(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/elements/brno-sw/difference", DIFFERENCE)
    assert json.loads(run("element", "diff", "brno-sw", "--json").stdout)["switch"]["add"] == {"p1": "100"}


def test_an_element_in_its_wanted_state_has_no_difference(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/elements/brno-sw/difference", {**DIFFERENCE, "switch": {}, "lines": []})
    assert run("element", "diff", "brno-sw", "--read").stdout.splitlines()[1:] == ["  nothing to change"]


def test_a_reconciliation_lists_the_changes(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DOCUMENTS, "/v1/elements/brno-sw/reconcile", {"element": SWITCH, "mended": {"add": {"p1": "100"}}}
    )
    result = run("element", "reconcile", "brno-sw")
    assert (result.exit_code, result.stdout) == (0, "switch brno-sw was read and changed:\n  + p1: VLAN 100\n")


def test_a_failed_reconciliation_exits_with_1_and_the_error(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DOCUMENTS,
        "/v1/elements/brno-sw/reconcile",
        {"element": {**SWITCH, "trouble": "switch brno-sw does not answer"}},
    )
    result = run("element", "reconcile", "brno-sw")
    assert (result.exit_code, result.stderr) == (1, "virtcloud: switch brno-sw does not answer\n")


def test_an_unreachable_device_is_reported_as_not_read(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = {**SWITCH, "reachable": False, "trouble": "switch brno-sw does not answer"}
    monkeypatch.setitem(DOCUMENTS, "/v1/elements/brno-sw/reconcile", {"element": unreachable})
    assert run("element", "reconcile", "brno-sw").stdout == "switch brno-sw could not be read; nothing was changed\n"


def test_the_former_command_check_names_its_successors(run: RunCommand) -> None:
    result = run("element", "check", "brno-sw")
    assert result.exit_code == 2
    assert "virtcloud element reconcile brno-sw" in result.stderr
    assert "virtcloud element diff brno-sw --read" in result.stderr


def test_untagged_vlans_are_marked(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"access": ["p2", "p3"], "close": ["p3"], "remove": {"p2": "99"}, "add": {"p2": "100"}}
    host = {"add": [{"key": "demo", "vlan": 100, "port": "eth1", "untagged": True}]}
    monkeypatch.setitem(DOCUMENTS, "/v1/elements/brno-sw/difference", {**DIFFERENCE, "switch": changed, "lines": []})
    monkeypatch.setitem(DOCUMENTS, "/v1/elements/brno-h1/difference", {**HOST, "host": host})
    assert run("element", "diff", "brno-sw").stdout.splitlines()[1:] == [
        "  ! p3: removed from all VLANs first",
        "  - p2 (untagged): VLAN 99",
        "  + p2 (untagged): VLAN 100",
    ]
    assert run("element", "diff", "brno-h1").stdout.splitlines()[1:] == [
        "  + eth1 (untagged): VLAN 100 for cluster demo"
    ]
