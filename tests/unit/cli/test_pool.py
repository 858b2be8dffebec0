"""Quarantine on the command line."""

from collections.abc import Callable

import pytest
from click.testing import Result
from fake_machine.clusters import DOCUMENTS, SITE, FakeSbf

Run = Callable[..., Result]
KEPT = {
    "vlan": 112,
    "cluster": "demo",
    "cluster_id": "4c1f",
    "since": "2026-07-01T12:00:00Z",
    "elements": {"brno-sw": "brno"},
}
CLEAN = ("pool", "clean", "brno", "112", "--by", "eva", "--reason", "scrapped")
PATH = "/v1/sites/brno/quarantine/112/clean"


def test_a_pool_shows_who_keeps_which_number_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno", {**SITE, "quarantined": "112", "quarantine": [KEPT]})
    lines = run("pool", "show", "brno").stdout.splitlines()
    assert (lines[0], lines[-1].split()[:2]) == ("100-199", ["112", "demo"])
    assert lines[-1].endswith("brno-sw at brno")


def test_a_number_is_said_clean_by_name_and_with_a_reason(
    run: Run, sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCUMENTS, PATH, SITE)
    assert run(*CLEAN).stdout == "VLAN 112 is not in quarantine at brno\n"
    assert sbf.put == [(PATH, {"by": "eva", "reason": "scrapped"})]


def test_what_still_keeps_a_number_back_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    still = {**KEPT, "elements": {"praha-sw": "praha"}}
    monkeypatch.setitem(DOCUMENTS, PATH, {**SITE, "quarantine": [still]})
    assert run(*CLEAN).stdout == "VLAN 112 is still kept back by praha-sw at praha: say it is clean there too\n"


@pytest.mark.parametrize("missing", ["--by", "--reason"])
def test_a_word_without_name_or_reason_is_not_sent(run: Run, sbf: FakeSbf, missing: str) -> None:
    blank = list(CLEAN)
    blank[blank.index(missing) + 1] = " "
    assert (run(*blank).exit_code, sbf.put) == (2, [])
