from dataclasses import dataclass, field
from typing import Any

import pytest
from support.hosts.job_socket_agent import FakeBridges, FakeProber

from virtcloud.agent.job_socket.job_records import JobRecord
from virtcloud.agent.job_socket.start_barrier import BarrierResult, BarrierState, StartBarrier, waiting_for
from virtcloud.model.errors import NotFound, ServiceUnreachable, VirtcloudError
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

JOB = JobRecord(cluster=ClusterKey("12.pbs"), attempt=0)
RESULT_UP = BarrierResult(BarrierState.UP)


def view(version: int, **changes: Any) -> ClusterView:
    keys = {"key": "12.pbs", "id": "x", "attempt": 1, "state": "active", "lease_ends": "2026-01-01T00:00:00Z"}
    guests = [{"name": "g1", "host": "brno-h1", "image": "x", "addresses": ["10.0.0.1/24"]}]
    placement = {"element": "brno-h1", "kind": "host", "site": "brno", "progress": "confirmed"}
    other_keys = {"version": version, "vlans": {"brno": 100}, "spec": {"owner": "alice", "guests": guests}}
    return ClusterView.model_validate(keys | other_keys | {"placements": [placement]} | changes)


@dataclass
class FakeSbf:
    """An SBF that returns prepared answers in order, and records the parameter ``wait`` of each call."""

    answers: list[ClusterView | VirtcloudError]
    waits: list[float] = field(default_factory=list)

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        self.waits.append(round(wait))
        answer = self.answers.pop(0)
        if isinstance(answer, VirtcloudError):
            raise answer
        return answer

    def peers(self, key: str, cluster_id: str | None = None) -> ClusterPeers:
        raise NotImplementedError

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        raise NotImplementedError


@dataclass
class Host:
    """A host with an SBF and bridges. It records each bridge on which a prober was opened, and each pause."""

    sbf: FakeSbf
    bridges: FakeBridges = field(default_factory=lambda: FakeBridges({"br100": {"10.0.0.1"}}))
    opened_bridges: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def open_prober(self, bridge: str) -> FakeProber:
        self.opened_bridges.append(bridge)
        return self.bridges.open_prober(bridge)

    def start_barrier(self) -> StartBarrier:
        return StartBarrier(
            Name("brno-h1"), self.sbf, self.open_prober, lambda seconds: self.pauses.append(round(seconds))
        )


def test_guests_are_probed_when_the_cluster_is_active() -> None:
    host = Host(FakeSbf([view(1, state="configuring"), view(2, state="configuring"), view(3), view(4)]))
    host.bridges.answering["br100"] = set()
    with host.start_barrier() as barrier:
        for _ in range(4):
            barrier.check(JOB, 30)
    assert host.sbf.waits == [0, 1, 1, 0], "expected the calls to wait for the cluster, but not for guests"
    assert host.opened_bridges == ["br100"], "expected one prober for all probes"


def test_answers_of_a_former_cluster_do_not_count() -> None:
    host = Host(FakeSbf([view(1), view(2, id="y")]))
    with host.start_barrier() as barrier:
        assert barrier.check(JOB, 0) == RESULT_UP
        host.bridges.answering["br100"] = set()
        assert barrier.check(JOB, 0) == waiting_for("guest g1 does not answer at 10.0.0.1")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound("x"), "SBF has no cluster 12.pbs on host brno-h1"),
        (ServiceUnreachable("SBF does not answer:\n it is away"), "SBF does not answer: it is away"),
    ],
)
def test_an_error_of_sbf_is_followed_by_a_pause(error: VirtcloudError, message: str) -> None:
    host = Host(FakeSbf([error]))
    with host.start_barrier() as barrier:
        assert barrier.check(JOB, 30) == waiting_for(message)
    assert host.pauses == [1]


def test_a_missing_bridge_is_reported() -> None:
    host = Host(FakeSbf([view(1)]), FakeBridges())
    with host.start_barrier() as barrier:
        assert barrier.check(JOB, 0) == waiting_for(
            "cannot probe addresses on bridge br100 of this host: No such device"
        )


def test_a_host_without_placement_waits_without_busy_loop() -> None:
    placement = {"element": "brno-h2", "kind": "host", "site": "brno", "progress": "confirmed"}
    host = Host(FakeSbf([view(1, placements=[placement]), view(2, placements=[placement])]))
    with host.start_barrier() as barrier:
        for _ in range(2):
            assert barrier.check(JOB, 30) == waiting_for("cluster 12.pbs is not on host brno-h1")
    assert host.sbf.waits == [0, 1]
