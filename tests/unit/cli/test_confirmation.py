"""Tests of dry runs, and of confirmation before a change to ports or VLANs whose use SBF did not configure."""

import json
from pathlib import Path

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import TOPOLOGY, FakeSbf

PORT_USE = {
    "element": "brno-sw",
    "site": "brno",
    "vlans": "145",
    "ports": ["p1"],
    "found": "port p1 carries VLAN 145, which no cluster uses",
    "effect": "removed from the port",
    "asks": True,
}
VLAN_USE = {**PORT_USE, "found": "VLAN 150 is named 'offices'", "effect": "left unchanged", "asks": False}
READ = {
    "element": "brno-sw",
    "kind": "switch",
    "site": "brno",
    "read_at": "2026-07-01T12:00:00Z",
    "switch": {"remove": {"p1": "145"}},
}
SET_POOL = ("pool", "set", "brno", "100-199")


@pytest.fixture
def in_use(sbf: FakeSbf) -> FakeSbf:
    sbf.change_preview = {"elements": [READ], "other_use": [PORT_USE], "unread": {"brno-sw2": "it is silent"}}
    return sbf


def test_a_dry_run_prints_every_devices_difference(run: RunCommand, in_use: FakeSbf) -> None:
    lines = run(*SET_POOL, "--dry-run").stdout.splitlines()
    assert lines[0].startswith("switch brno-sw at brno, read 2026-07-01")
    assert lines[1:] == [
        "  - p1: VLAN 145",
        "in other use:",
        "  brno-sw at brno: port p1 carries VLAN 145, which no cluster uses: removed from the port",
        "brno-sw2 could not be read: it is silent",
        "nothing was changed",
    ]
    assert in_use.put == []


def test_a_dry_run_is_printed_as_json(run: RunCommand, in_use: FakeSbf) -> None:
    dry_run = json.loads(run(*SET_POOL, "--dry-run", "--json").stdout)
    assert dry_run["other_use"] == [PORT_USE]


def test_without_a_terminal_a_pool_in_other_use_needs_yes(run: RunCommand, in_use: FakeSbf) -> None:
    result = run(*SET_POOL)
    assert (result.exit_code, in_use.put) == (2, [])
    assert "pass --yes" in result.stderr
    assert "port p1 carries VLAN 145" in result.stderr


def test_with_yes_a_pool_in_other_use_is_set(run: RunCommand, in_use: FakeSbf) -> None:
    result = run(*SET_POOL, "--yes")
    assert (result.exit_code, in_use.put) == (0, [("/v1/sites/brno/pool", {"vlans": "100-199"})])


def test_other_use_that_does_not_change_needs_no_confirmation(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.change_preview = {"other_use": [VLAN_USE]}
    result = run(*SET_POOL)
    assert (result.exit_code, len(sbf.put)) == (0, 1)
    assert "VLAN 150 is named 'offices': left unchanged" in result.stderr


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtcloud.cli.confirmation.is_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_a_confirmed_change_is_made(run: RunCommand, in_use: FakeSbf) -> None:
    result = run(*SET_POOL, stdin="y\n")
    assert (result.exit_code, len(in_use.put)) == (0, 1)


@pytest.mark.usefixtures("terminal")
def test_a_declined_change_is_not_made(run: RunCommand, in_use: FakeSbf) -> None:
    result = run(*SET_POOL, stdin="n\n")
    assert (result.exit_code, in_use.put) == (1, [])


def test_a_topology_with_ports_in_other_use_needs_yes(run: RunCommand, in_use: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(TOPOLOGY))
    refused = run("topology", "set", str(tmp_path / "t.yaml"))
    confirmed = run("topology", "set", str(tmp_path / "t.yaml"), "--yes")
    assert (refused.exit_code, confirmed.exit_code, len(in_use.put)) == (2, 0, 1)


def test_a_topologys_dry_run_sets_nothing(run: RunCommand, in_use: FakeSbf, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(json.dumps(TOPOLOGY))
    result = run("topology", "set", str(tmp_path / "t.yaml"), "--dry-run")
    assert (result.exit_code, in_use.put) == (0, [])
    assert "  - p1: VLAN 145" in result.stdout
