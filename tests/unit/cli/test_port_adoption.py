"""Tests of ``virtcloud element adopt`` and ``release``. Adoption prints its effect and requires confirmation."""

import json
from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import FakeSbf

IN_USE = {
    "port": "Gi1/0/1",
    "state": "in use",
    "use": {"mode": "access", "access": 20, "lines": ["switchport access vlan 20"]},
    "effect": "becomes a trunk with SBF's VLANs only: VLAN 20 is removed",
}
TAKEN = {
    "port": "Gi1/0/2",
    "state": "taken",
    "use": {"mode": "trunk", "tagged": "112"},
    "before": {"mode": "access", "access": 30},
}
ADOPT = ("element", "adopt", "brno-sw", "Gi1/0/1")
EFFECT_LINE = "Gi1/0/1: an access port in VLAN 20 becomes a trunk with SBF's VLANs only: VLAN 20 is removed"


@pytest.fixture
def posted(sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    requests: list[tuple[str, dict[str, Any]]] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method == "GET":
            return 200, json.dumps([IN_USE, TAKEN]).encode()
        requests.append((path, json.loads(body)))
        return 204, b""

    monkeypatch.setattr(sbf, "answer", answer)
    return requests


def test_adoption_without_a_terminal_needs_yes(run: RunCommand, posted: list[tuple[str, dict[str, Any]]]) -> None:
    result = run(*ADOPT)
    assert (result.exit_code, posted) == (2, [])
    assert result.stdout.splitlines() == [EFFECT_LINE]
    assert "pass --yes" in result.stderr


def test_adoption_sends_the_displayed_use(run: RunCommand, posted: list[tuple[str, dict[str, Any]]]) -> None:
    result = run(*ADOPT, "--yes")
    assert result.stdout.splitlines() == [EFFECT_LINE, "adopted Gi1/0/1 of brno-sw"]
    ((path, body),) = posted
    assert path == "/v1/elements/brno-sw/ports/adopt"
    assert body["ports"]["Gi1/0/1"]["lines"] == ["switchport access vlan 20"]


def test_a_dry_run_adopts_nothing(run: RunCommand, posted: list[tuple[str, dict[str, Any]]]) -> None:
    assert run(*ADOPT, "--dry-run").stdout.splitlines() == [EFFECT_LINE, "nothing was changed"]
    assert posted == []


@pytest.mark.parametrize(
    ("port", "message"),
    [("Gi9/0/9", "expected a managed port of switch brno-sw"), ("Gi1/0/2", "SBF already controls port Gi1/0/2")],
)
def test_a_port_that_cannot_be_adopted_is_refused(
    run: RunCommand, posted: list[tuple[str, dict[str, Any]]], port: str, message: str
) -> None:
    result = run("element", "adopt", "brno-sw", port, "--yes")
    assert (result.exit_code, posted) == (2, [])
    assert message in result.stderr


def test_a_port_of_a_replaced_switch_needs_a_release(run: RunCommand, posted: list[tuple[str, dict[str, Any]]]) -> None:
    result = run("element", "adopt", "brno-sw", "Gi1/0/2", "--yes")
    assert (result.exit_code, posted) == (2, [])
    assert "SBF would restore the former switch's use (an access port in VLAN 30)" in result.stderr
    assert "'virtcloud element release brno-sw Gi1/0/2 --forget', and adopt the port again" in result.stderr


def test_a_release_prints_that_the_configuration_is_restored(
    run: RunCommand, posted: list[tuple[str, dict[str, Any]]]
) -> None:
    result = run("element", "release", "brno-sw", "Gi1/0/1")
    assert result.stdout == "released Gi1/0/1 of brno-sw: SBF restores the former configuration\n"
    assert posted == [("/v1/elements/brno-sw/ports/release", {"ports": ["Gi1/0/1"]})]


def test_ports_are_listed_with_their_uses(run: RunCommand, posted: list[tuple[str, dict[str, Any]]]) -> None:
    first = run("element", "ports", "brno-sw").stdout.splitlines()[1]
    assert first.split("  ")[0] == "Gi1/0/1"
    assert "in use" in first
    assert posted == []
