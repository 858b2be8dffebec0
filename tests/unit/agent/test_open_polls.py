"""Tests of an agent's open poll: a long poll that continues while the agent reads its host several times."""

from collections.abc import Callable

import pytest

from virtcloud.agent.open_polls import OPEN_S, OpenPoll
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, WantedDocument

SETTLED, CHANGED = (
    WantedDocument(element=Name("h1"), revision=number, confirmed_revision=1, wanted=HostWanted()) for number in (1, 2)
)


class ScriptedSbf:
    """An SBF with prepared answers to polls.

    `find_settled` returns ``settled``: the document that the agent has received and may still use, or None.
    """

    def __init__(self, *answers: WantedDocument | Exception) -> None:
        self.answers = list(answers)
        self.polls: list[tuple[int | None, float]] = []
        self.settled: WantedDocument | None = SETTLED
        self.confirm = self.report_error = self.report_drift = lambda *_, **__: None

    def wanted(self, _element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        self.polls.append((after, wait))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find_settled(self, _element: str, revision: int) -> WantedDocument | None:
        return self.settled if self.settled is not None and self.settled.revision == revision else None


def open_poll(sbf: ScriptedSbf) -> tuple[OpenPoll, list[Callable[[], None]]]:
    """Return a poll and a list. The poll starts no threads, but adds the functions of the threads to the list."""
    threads: list[Callable[[], None]] = []
    return OpenPoll(sbf, threads.append), threads


def test_one_poll_lasts_for_several_readings_of_the_host() -> None:
    sbf = ScriptedSbf(CHANGED)
    poll, threads = open_poll(sbf)
    assert [poll.wanted("h1", 1, 0.001) for _ in range(3)] == [SETTLED] * 3
    threads.pop()()
    assert (threads, poll.wanted("h1", 1, 10), sbf.polls) == ([], CHANGED, [(1, OPEN_S)])


def test_an_ended_poll_is_followed_by_another() -> None:
    poll, threads = open_poll(ScriptedSbf(SETTLED, CHANGED))
    for expected in (SETTLED, CHANGED):
        poll.wanted("h1", 1, 0)
        threads.pop()()
        assert poll.wanted("h1", 1, 10) is expected


def test_an_error_of_the_open_poll_is_raised_once() -> None:
    poll, threads = open_poll(ScriptedSbf(ServiceUnreachable("no answer"), CHANGED))
    poll.wanted("h1", 1, 0)
    threads.pop()()
    with pytest.raises(ServiceUnreachable, match="no answer"):
        poll.wanted("h1", 1, 10)
    assert poll.wanted("h1", 1, 0) is SETTLED
    threads.pop()()
    assert poll.wanted("h1", 1, 10) is CHANGED


@pytest.mark.parametrize("after", [None, 2])
def test_without_a_usable_document_each_call_sends_a_poll(after: int | None) -> None:
    sbf = ScriptedSbf(CHANGED)
    poll, threads = open_poll(sbf)
    assert (poll.wanted("h1", after, 5), threads, sbf.polls) == (CHANGED, [], [(after, 5)])


def test_a_poll_for_a_former_revision_is_abandoned() -> None:
    sbf = ScriptedSbf(CHANGED, CHANGED)
    poll, threads = open_poll(sbf)
    poll.wanted("h1", 1, 0)
    sbf.settled = CHANGED
    assert poll.wanted("h1", 2, 0) is CHANGED
    threads[0]()
    assert poll.wanted("h1", 2, 0) is CHANGED
    threads[1]()
    assert [after for after, _ in sbf.polls] == [1, 2]


def test_without_a_thread_each_call_sends_its_own_poll() -> None:
    """If the host's processes use all permitted tasks, no thread can be started. The agent must still poll SBF."""
    sbf = ScriptedSbf(SETTLED, CHANGED)

    def refuse(_work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    poll = OpenPoll(sbf, refuse)
    assert [poll.wanted("h1", 1, 0.1) for _ in range(2)] == [SETTLED, CHANGED]
    assert sbf.polls == [(1, 0.1), (1, 0.1)]
