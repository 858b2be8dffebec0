from pathlib import Path

import pytest
from support.hosts.job_socket_agent import FakeBridges

from virtcloud.agent.job_access.access import JobAccess, ScriptEnvironment
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase, record_announcement
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.agent.job_socket.request_handler import HandlerDependencies, RequestHandler
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.socket_requests import RemoveRequest, StateRequest, UpRequest
from virtcloud.agent.job_socket.start_barrier import StartBarrier
from virtcloud.model.cluster import ClusterState
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

KEY = ClusterKey("12.pbs")


class NoAccess:
    """An access provider for tests in which no job has access."""

    def open(self, access: JobAccess) -> ScriptEnvironment:
        raise AssertionError(access)

    def close(self, key: str) -> None:
        """Do nothing."""

    def is_lost(self, key: str) -> bool:
        raise AssertionError(key)


class RestoredSbf:
    """SBF with a cluster that stays active after each request for its end, as after a restore from a backup."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        del after, wait
        self.calls.append(f"read {key}")
        return _view(ClusterState.ACTIVE)

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        del attempt, owner
        self.calls.append(f"delete {key}")
        return _view(ClusterState.DRAINING)

    def peers(self, key: str, cluster_id: str | None = None) -> ClusterPeers:
        raise AssertionError((key, cluster_id))


def _view(state: ClusterState, progress: str = "removing") -> ClusterView:
    placement = {"element": "brno-h1", "kind": "host", "site": "brno", "progress": progress}
    keys = {"key": KEY, "id": "x", "attempt": 1, "version": 1, "lease_ends": "2026-01-01T00:00:00Z", "vlans": {}}
    spec = {"owner": "alice", "hosts": ["brno-h1"]}
    return ClusterView.model_validate(keys | {"state": state, "spec": spec, "placements": [placement]})


def test_the_end_of_a_restored_cluster_is_requested_again(tmp_path: Path) -> None:
    sbf, records = RestoredSbf(), JobRecordStore(tmp_path)
    job = records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=1, phase=RecordPhase.LEAVING))
    removals = JobRemovals(Name("brno-h1"), sbf, records, ScriptAccess(NoAccess(), records, sbf.peers))
    for _ in range(4):
        removals._remove(job)
    assert sbf.calls == ["delete 12.pbs", "read 12.pbs", "delete 12.pbs", "read 12.pbs"]


@pytest.mark.parametrize(
    ("view", "attempt", "is_kept"),
    [
        (_view(ClusterState.RELEASED, "removed"), 0, False),
        (_view(ClusterState.ACTIVE, "confirmed"), 0, True),
        (_view(ClusterState.RELEASED, "removed"), 1, True),
    ],
)
def test_a_run_that_no_hook_ended_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: ClusterView, attempt: int, is_kept: bool
) -> None:
    """The host crashed during the job. Only runs of batch systems that count no attempts (attempt 0) are forgotten."""
    sbf, records = RestoredSbf(), JobRecordStore(tmp_path)
    records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=attempt, was_up=True))
    monkeypatch.setattr(sbf, "cluster", lambda _: view)
    removals = JobRemovals(Name("brno-h1"), sbf, records, ScriptAccess(NoAccess(), records, sbf.peers))
    assert removals._forget_lost_runs(lambda: None)
    assert (records.get(KEY) is not None, sbf.calls) == (is_kept, [])


@pytest.mark.parametrize("phase", [RecordPhase.ASKED, RecordPhase.CANCELLED])
def test_a_run_that_was_never_up_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: RecordPhase
) -> None:
    """The first search for lost runs only remembers the run, because the run may have just begun or been cancelled."""
    sbf, records = RestoredSbf(), JobRecordStore(tmp_path)
    records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=0, phase=phase))
    monkeypatch.setattr(sbf, "cluster", lambda _: _view(ClusterState.RELEASED, "removed"))
    removals = JobRemovals(Name("brno-h1"), sbf, records, ScriptAccess(NoAccess(), records, sbf.peers))
    kept = [(removals._forget_lost_runs(lambda: None), records.get(KEY) is not None) for _ in range(2)]
    assert kept == [(True, True), (True, False)]


@pytest.mark.parametrize("is_former_over", [True, False])
def test_a_run_that_begins_after_the_previous_search_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_former_over: bool
) -> None:
    """The former run and the new run have equal records.

    Without its record, Torque's script would treat the job of the new run as deleted.
    """
    sbf, records = RestoredSbf(), JobRecordStore(tmp_path)
    monkeypatch.setattr(sbf, "cluster", lambda _: _view(ClusterState.RELEASED, "removed"))
    removals = JobRemovals(Name("brno-h1"), sbf, records, ScriptAccess(NoAccess(), records, sbf.peers))
    up = UpRequest(do="up", cluster=KEY, attempt=0)
    records.change(KEY, lambda known: record_announcement(known, up))
    removals._forget_lost_runs(lambda: None)
    if is_former_over:
        records.change(KEY, lambda _: None)
    records.change(KEY, lambda known: record_announcement(known, up))
    removals._forget_lost_runs(lambda: None)
    assert records.get(KEY) is not None


def test_a_state_request_after_the_removal_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbf, records = RestoredSbf(), JobRecordStore(tmp_path)
    monkeypatch.setattr(sbf, "cluster", lambda *_, **__: _view(ClusterState.CONFIGURING))
    records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=1))
    access = ScriptAccess(NoAccess(), records, sbf.peers)
    handler = RequestHandler(
        HandlerDependencies(
            records,
            access,
            JobRemovals(Name("brno-h1"), sbf, records, access),
            open_barrier=lambda: StartBarrier(Name("brno-h1"), sbf, FakeBridges().open_prober, lambda _: None),
            wake_reconciler=lambda: None,
            grace_s=0,
        )
    )
    assert handler.answer(StateRequest(do="state", cluster=KEY, attempt=1))["state"] == "waiting"
    handler.answer(RemoveRequest(do="remove", cluster=KEY, attempt=1))
    assert handler.answer(StateRequest(do="state", cluster=KEY, attempt=1))["state"] == "ended"
    assert handler._last_results == {}
