from collections.abc import Callable

import pytest

from virtcloud.agent.guest_access import session_listener
from virtcloud.agent.guest_access.session_listener import SessionListener, find_segment
from virtcloud.model.errors import Refused, ServiceUnreachable, VirtcloudError
from virtcloud.model.guest_sessions import GuestSession
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, Segment

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
