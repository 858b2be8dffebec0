import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from virtcloud.agent.guest_access import session_listener
from virtcloud.agent.guest_access.session_listener import SessionListener, find_segment
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import Refused, ServiceUnreachable, VirtcloudError
from virtcloud.model.guest_sessions import GuestSession, SessionAnswer
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, Segment, WantedDocument

Make = Callable[..., Segment]


def session(network: str, guest: str, kind: str = "log") -> GuestSession:
    return GuestSession.model_validate({"number": 1, "id": "x", "network": network, "guest": guest, "kind": kind})


def test_a_session_with_a_wanted_guest_is_accepted(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    assert find_segment(HostWanted(segments=(segment,)), session("a", "g1")) == segment


@pytest.mark.parametrize(("network", "guest"), [("a", "g2"), ("b", "g1")])
def test_a_session_with_another_guest_is_refused(make_segment: Make, network: str, guest: str) -> None:
    wanted = HostWanted(segments=(make_segment("a", 100, ("g1",)),))
    with pytest.raises(Refused, match=f"guest {guest} is not wanted on this host"):
        find_segment(wanted, session(network, guest))


def test_a_check_of_paths_needs_the_network_but_no_guest(make_segment: Make) -> None:
    segment = make_segment("a", 100, ())
    assert find_segment(HostWanted(segments=(segment,)), session("a", "brno-h1", "frames")) == segment


def test_a_check_of_an_unwanted_network_is_refused(make_segment: Make) -> None:
    wanted = HostWanted(segments=(make_segment("a", 100, ("g1",)),))
    with pytest.raises(Refused, match="the cluster is not wanted on this host"):
        find_segment(wanted, session("b", "brno-h1", "frames"))


def test_the_pauses_after_failed_polls_begin_with_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class SilentSbf:
        def waiting_sessions(self, _element: str, _after: int, _wait: float) -> list[GuestSession]:
            raise ServiceUnreachable("SBF does not answer")

    def record_pause(_error: VirtcloudError, pause_s: float) -> float:
        pauses.append(pause_s)
        if len(pauses) == 8:
            listener.stop()
        return 0

    pauses = list[float]()
    monkeypatch.setattr(session_listener, "compute_retry_pause", record_pause)
    listener = SessionListener(Name("brno-h1"), SilentSbf(), None, None)  # type: ignore[arg-type]
    listener.start(lambda _name, work, _limit: work(lambda: None))  # type: ignore[arg-type, return-value]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


class RecordingStream(SessionStream):
    """The agent's side of a session. Records the texts that the agent sends."""

    def __init__(self) -> None:
        self.texts = list[str]()
        self.closed = threading.Event()

    def send_text(self, text: str) -> None:
        self.texts.append(text)

    def close(self) -> None:
        self.closed.set()


class BusySbf:
    """An SBF with waiting sessions for a listener, which stops after the first poll."""

    def __init__(self, sessions: int) -> None:
        self.sessions = [session("a", "g1").model_copy(update={"number": number}) for number in range(1, sessions + 1)]
        self.streams = SimpleQueue[RecordingStream]()
        self.answers = threading.Event()
        self.listener = SessionListener(Name("brno-h1"), self, None, None)  # type: ignore[arg-type]

    def waiting_sessions(self, element: str, after: int = 0, wait: float = 0) -> list[GuestSession]:
        self.listener.stop()
        return self.sessions

    def join_session(self, element: str, session: GuestSession) -> SessionStream:
        self.streams.put(stream := RecordingStream())
        self.answers.wait(30)
        return stream

    def wanted(self, element: str) -> WantedDocument:
        raise AssertionError(element)

    def poll(self) -> None:
        """Run the listener for one poll, while all places of sessions are in use."""
        while self.listener._free.acquire(blocking=False):
            pass
        self.listener.start(lambda _name, work, _limit: work(lambda: None))  # type: ignore[arg-type, return-value]


def test_a_session_beyond_the_limit_is_refused_with_the_reason() -> None:
    sbf = BusySbf(1)
    sbf.answers.set()
    sbf.poll()
    stream = sbf.streams.get(timeout=30)
    assert stream.closed.wait(30)
    (text,) = stream.texts
    expected = "this host has 500 sessions with guests, its limit: try again later"
    assert SessionAnswer.model_validate_json(text).error == expected


def test_refusals_do_not_delay_the_next_poll_of_sessions() -> None:
    """SBF does not answer while the listener refuses sessions."""
    sbf = BusySbf(session_listener.MAX_REFUSALS + 5)
    sbf.poll()
    streams = [sbf.streams.get(timeout=30) for _ in range(session_listener.MAX_REFUSALS)]
    assert not any(stream.texts for stream in streams)
    sbf.answers.set()
    assert all(stream.closed.wait(30) for stream in streams)
    assert sbf.streams.empty()
