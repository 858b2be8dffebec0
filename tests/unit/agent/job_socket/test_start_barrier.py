"""Tests of the start barrier's messages for each state of a cluster.

An uncounted run is a run of a batch system that counts no attempts. Its attempt number is 0.
"""

from ipaddress import ip_address
from typing import Any

import pytest

from virtcloud.agent.job_socket import start_barrier
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase
from virtcloud.agent.job_socket.start_barrier import BarrierResult, BarrierState, evaluate_record, evaluate_view
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Gone
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView

GUESTS = [
    {"name": "g1", "host": "brno-h1", "image": "x", "addresses": ["10.0.0.1/24"]},
    {"name": "g2", "host": "brno-h2", "image": "x", "addresses": ["10.0.0.2/24", "fd00::2/64"]},
    {"name": "g3", "host": "brno-h2", "image": "x"},
]
FIRST, SECOND = ip_address("10.0.0.1"), ip_address("fd00::2")


def view(state: ClusterState, *placements: tuple[str, str, str | None], **changes: Any) -> ClusterView:
    placement_views = [
        {
            "element": name,
            "kind": "switch" if "sw" in name else "host",
            "site": "brno",
            "progress": progress,
            "trouble": trouble,
        }
        for name, progress, trouble in placements
    ]
    return ClusterView.model_validate(
        {
            "key": "12.pbs",
            "id": "x",
            "attempt": 1,
            "version": 1,
            "state": state,
            "vlans": {"brno": 100},
            "lease_ends": "2026-01-01T00:00:00Z",
            "spec": {"owner": "alice", "guests": GUESTS},
            "placements": placement_views,
            **changes,
        }
    )


def test_each_unconfirmed_element_is_named_with_its_error() -> None:
    cluster = view(
        ClusterState.CONFIGURING,
        ("brno-h1", "confirmed", None),
        ("brno-h2", "adding", "image debian:\n  not found"),
        ("brno-sw1", "adding", None),
    )
    assert evaluate_view(cluster, 1, ()).missing == (
        "host brno-h2 at brno has not confirmed (image debian: not found)",
        "switch brno-sw1 at brno has not confirmed",
    )


def test_one_answering_address_suffices_for_a_guest() -> None:
    cluster = view(ClusterState.ACTIVE, ("brno-h1", "confirmed", None))
    assert evaluate_view(cluster, 1, ()).missing == (
        "guest g1 does not answer at 10.0.0.1",
        "guest g2 does not answer at 10.0.0.2 or fd00::2",
    )
    assert evaluate_view(cluster, 1, {SECOND}).missing == ("guest g1 does not answer at 10.0.0.1",)
    assert evaluate_view(cluster, 1, {FIRST, SECOND}) == BarrierResult(BarrierState.UP)


def test_a_stopped_guest_need_not_answer() -> None:
    cluster = view(ClusterState.ACTIVE, ("brno-h1", "confirmed", None), stopped_guests=["g2"])
    assert evaluate_view(cluster, 1, ()).missing == ("guest g1 does not answer at 10.0.0.1",)
    assert evaluate_view(cluster, 1, {FIRST}) == BarrierResult(BarrierState.UP)


@pytest.mark.parametrize(
    ("state", "barrier_state"),
    [
        (ClusterState.REQUESTED, BarrierState.WAITING),
        (ClusterState.CONFIGURING, BarrierState.WAITING),
        (ClusterState.DEGRADED, BarrierState.WAITING),
        (ClusterState.ACTIVE, BarrierState.UP),
        (ClusterState.FAILING, BarrierState.FAILED),
        (ClusterState.FAILED, BarrierState.FAILED),
        (ClusterState.DRAINING, BarrierState.ENDED),
        (ClusterState.RELEASED, BarrierState.ENDED),
    ],
)
def test_each_cluster_state_has_a_barrier_state(state: ClusterState, barrier_state: BarrierState) -> None:
    assert evaluate_view(view(state), 1, {FIRST, SECOND}).state is barrier_state


def test_a_failed_cluster_has_the_reason_from_sbf() -> None:
    assert evaluate_view(view(ClusterState.FAILED, reason="no image"), 1, ()) == BarrierResult(
        BarrierState.FAILED, reason="no image"
    )


def test_a_degraded_cluster_names_the_element_or_reason() -> None:
    degraded = view(ClusterState.DEGRADED, ("brno-sw1", "adding", "drifted"))
    assert evaluate_view(degraded, 1, ()).missing == ("switch brno-sw1 at brno has not confirmed (drifted)",)
    unreachable = view(ClusterState.DEGRADED, ("brno-sw1", "confirmed", None), reason="brno-sw1 cannot be reached")
    assert evaluate_view(unreachable, 1, ()).missing == ("cluster 12.pbs is degraded (brno-sw1 cannot be reached)",)


def test_a_cluster_of_another_attempt_is_not_used() -> None:
    older, newer = view(ClusterState.ACTIVE, attempt=1), view(ClusterState.ACTIVE, attempt=3)
    assert evaluate_view(older, 2, {FIRST, SECOND}) == BarrierResult(
        BarrierState.WAITING, ("cluster 12.pbs: SBF still has attempt 1, not yet attempt 2",)
    )
    assert not start_barrier.is_attempt_active(older, 2)
    with pytest.raises(Gone, match=r"^cluster 12\.pbs: attempt 2 is over; SBF has attempt 3$"):
        evaluate_view(newer, 2, ())


def test_an_uncounted_run_uses_any_attempt() -> None:
    assert evaluate_view(view(ClusterState.ACTIVE, attempt=7), 0, {FIRST, SECOND}) == BarrierResult(BarrierState.UP)


@pytest.mark.parametrize(
    ("phase", "barrier_state"),
    [
        (RecordPhase.ASKED, None),
        (RecordPhase.CANCELLED, BarrierState.CANCELLED),
        (RecordPhase.LEAVING, BarrierState.ENDED),
        (RecordPhase.GONE, BarrierState.ENDED),
    ],
)
def test_a_locally_ended_run_needs_no_call_to_sbf(phase: RecordPhase, barrier_state: BarrierState | None) -> None:
    result = evaluate_record(JobRecord(cluster=ClusterKey("a"), attempt=1, phase=phase, reason="qdel"))
    assert result == (BarrierResult(barrier_state, reason="qdel") if barrier_state else None)
