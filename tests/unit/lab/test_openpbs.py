"""Tests of ``LabPbs.await_free``, which waits until hosts of the lab's OpenPBS are free."""

import pytest

from virtcloud.lab.errors import LabFailed
from virtcloud.lab.pbs import LabPbs, openpbs


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> LabPbs:
    """An OpenPBS on a slow machine: the time limit ends before the first query of the hosts' states."""
    monkeypatch.setattr(openpbs, "START_S", -1.0)
    return LabPbs(None, None)  # type: ignore[arg-type]


def test_a_free_host_is_accepted_after_the_time_limit(pbs: LabPbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabPbs, "root", lambda *_: "h1\n     state = free\n")
    pbs.await_free(["h1"])


def test_the_error_has_the_last_answer(pbs: LabPbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabPbs, "root", lambda *_: "h1\n     state = down\n")
    with pytest.raises(LabFailed, match="expected h1 to be free after -1 s, got: h1\n     state = down"):
        pbs.await_free(["h1"])
