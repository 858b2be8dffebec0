from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS

PATH = "/v1/sites/brno/verify"
RIGHT = {"a": "brno-h1:eth0", "b": "brno-sw1:p1", "state": "right"}
MOVED = {
    "a": "brno-h2:eth0",
    "b": "brno-sw1:p2",
    "state": "elsewhere",
    "found": ["brno-h2:eth0 is seen at brno-sw1:p3"],
}
SILENT = {"a": "brno-gw1:eth0", "b": "brno-sw1:p4", "state": "unknown", "found": ["brno-sw1:p4 sees no neighbour"]}


def set_answer(monkeypatch: pytest.MonkeyPatch, *cables: dict[str, Any], **unread: str) -> None:
    answer = {"site": "brno", "at": "2026-01-01T00:00:00Z", "cables": cables, "unread": unread}
    monkeypatch.setitem(DOCUMENTS, PATH, answer)


def test_a_site_with_right_cables_exits_with_0(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    set_answer(monkeypatch, RIGHT, SILENT)
    result = run("site", "verify", "brno")
    assert result.exit_code == 0
    assert result.stdout == (
        "unknown: brno-gw1:eth0 - brno-sw1:p4\n"
        "  brno-sw1:p4 sees no neighbour\n"
        "site brno: cables: 1 right, 0 wrong, 1 unknown\n"
    )


def test_a_wrong_cable_is_printed_with_its_remedy(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    set_answer(monkeypatch, RIGHT, MOVED)
    result = run("site", "verify", "brno")
    assert result.exit_code == 1
    assert result.stdout == (
        "wrong: brno-h2:eth0 - brno-sw1:p2: connected elsewhere: move the cable, or correct the topology\n"
        "  brno-h2:eth0 is seen at brno-sw1:p3\n"
        "site brno: cables: 1 right, 1 wrong, 0 unknown\n"
    )
    assert result.stderr == "virtcloud: site brno: 1 wrong cable\n"


def test_an_unread_switch_is_named_and_exits_with_1(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    set_answer(monkeypatch, RIGHT, **{"brno-sw2": "switch brno-sw2 does not answer"})
    result = run("site", "verify", "brno")
    assert result.exit_code == 1
    assert "not read: switch brno-sw2 does not answer\n" in result.stdout
    assert result.stderr == "virtcloud: site brno: could not read brno-sw2\n"


def test_json_is_the_answer_with_the_same_exit_code(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    set_answer(monkeypatch, MOVED)
    result = run("site", "verify", "brno", "--json")
    assert result.exit_code == 1
    assert '"state": "elsewhere"' in result.stdout
