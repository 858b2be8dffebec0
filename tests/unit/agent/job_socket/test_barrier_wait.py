from dataclasses import dataclass, field
from typing import Any

import pytest
from job_socket_agent import FakeBridges, FakeProber

from virtcloud.agent.job_socket.job_records import JobRecord
from virtcloud.agent.job_socket.start_barrier import BarrierResult, BarrierState, StartBarrier, waiting_for
from virtcloud.model.errors import NotFound, ServiceUnreachable, VirtcloudError
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

JOB = JobRecord(cluster=ClusterKey("12.pbs"), attempt=0)
UP = BarrierResult(BarrierState.UP)


def view(version: int, **changes: Any) -> ClusterView:  # noqa: ANN401
    keys = {"key": "12.pbs", "id": "x", "attempt": 1, "state": "active", "lease_ends": "2026-01-01T00:00:00Z"}
    guests = [{"name": "g1", "host": "brno-h1", "image": "x", "addresses": ["10.0.0.1/24"]}]
    part = {"element": "brno-h1", "kind": "host", "site": "brno", "progress": "confirmed"}
    made = {"version": version, "vlans": {"brno": 100}, "spec": {"owner": "alice", "guests": guests}}
    return ClusterView.model_validate(keys | made | {"placements": [part]} | changes)


@dataclass
class FakeSbf:
    """Returns answers in order; records the wait of each call."""

    answers: list[ClusterView | VirtcloudError]
    waits: list[float] = field(default_factory=list)

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        self.waits.append(round(wait))
        answer = self.answers.pop(0)
        if isinstance(answer, VirtcloudError):
            raise answer
        return answer

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        raise NotImplementedError


@dataclass
class Host:
    """The host: its bridges, the opened probers, and the pauses."""

    sbf: FakeSbf
    bridges: FakeBridges = field(default_factory=lambda: FakeBridges({"br100": {"10.0.0.1"}}))
    opened: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def listen(self, bridge: str) -> FakeProber:
        self.opened.append(bridge)
        return self.bridges.listen(bridge)

    def watch(self) -> StartBarrier:
        return StartBarrier(Name("brno-h1"), self.sbf, self.listen, lambda seconds: self.pauses.append(round(seconds)))


def test_guests_are_probed_once_the_cluster_is_active() -> None:
    host = Host(FakeSbf([view(1, state="configuring"), view(2, state="configuring"), view(3), view(4)]))
    host.bridges.there["br100"] = set()
    with host.watch() as watch:
        for _ in range(4):
            watch.check(JOB, 30)
    assert host.sbf.waits == [0, 1, 1, 0], "once guests are asked, SBF is not waited for"
    assert host.opened == ["br100"], "one ear, open all the time"


def test_answers_of_a_former_cluster_do_not_count() -> None:
    host = Host(FakeSbf([view(1), view(2, id="y")]))
    with host.watch() as watch:
        assert watch.check(JOB, 0) == UP
        host.bridges.there["br100"] = set()
        assert watch.check(JOB, 0) == waiting_for("guest g1 does not answer at 10.0.0.1")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotFound("x"), "SBF has no cluster 12.pbs on host brno-h1"),
        (ServiceUnreachable("SBF does not answer:\n it is away"), "SBF does not answer: it is away"),
    ],
)
def test_while_sbf_cannot_say_it_is_waited_in_peace(error: VirtcloudError, words: str) -> None:
    host = Host(FakeSbf([error]))
    with host.watch() as watch:
        assert watch.check(JOB, 30) == waiting_for(words)
    assert host.pauses == [1]


def test_a_missing_bridge_is_reported() -> None:
    host = Host(FakeSbf([view(1)]), FakeBridges())
    with host.watch() as watch:
        assert watch.check(JOB, 0) == waiting_for("cannot probe addresses on bridge br100 of this host: No such device")


def test_a_host_without_placement_waits_without_busy_loop() -> None:
    part = {"element": "brno-h2", "kind": "host", "site": "brno", "progress": "confirmed"}
    host = Host(FakeSbf([view(1, placements=[part]), view(2, placements=[part])]))
    with host.watch() as watch:
        for _ in range(2):
            assert watch.check(JOB, 30) == waiting_for("cluster 12.pbs is not on host brno-h1")
    assert host.sbf.waits == [0, 1]
