from dataclasses import dataclass, field
from pathlib import Path

import pytest

from virtcloud.agent.job_access.access import JobAccess, ScriptEnvironment
from virtcloud.agent.job_socket.job_records import JobRecord, JobRecordStore, RecordPhase
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

KEY, BRNO = ClusterKey("12.pbs"), Name("brno")


@dataclass
class FakePort:
    """Records which access is opened and closed."""

    did: list[str] = field(default_factory=list)
    refuses: bool = False

    def open(self, opening: JobAccess) -> ScriptEnvironment:
        if self.refuses:
            raise Refused("no")
        self.did.append(f"open {opening.key} in {opening.vlan} for {opening.user}")
        return {"VCLUSTER_HOSTS": "/x"}

    def close(self, key: str) -> None:
        self.did.append(f"close {key}")


def view(vlan: int = 100) -> ClusterView:
    keys = {"key": KEY, "id": "x", "attempt": 1, "version": 1, "state": "active", "lease_ends": "2026-01-01T00:00:00Z"}
    return ClusterView.model_validate(
        keys | {"vlans": {BRNO: vlan}, "spec": {"owner": "alice", "hosts": ["brno-h1"], "name": "demo"}}
    )


def run(attempt: int = 1, phase: RecordPhase = RecordPhase.ASKED) -> JobRecord:
    return JobRecord(cluster=KEY, attempt=attempt, phase=phase, head=True, user="alice")


def known(ledger: JobRecordStore, job: JobRecord) -> JobRecord:
    return ledger.change(KEY, lambda _: job)


@pytest.fixture
def port() -> FakePort:
    return FakePort()


@pytest.fixture
def ledger(tmp_path: Path) -> JobRecordStore:
    return JobRecordStore(tmp_path)


@pytest.fixture
def places(port: FakePort, ledger: JobRecordStore) -> ScriptAccess:
    return ScriptAccess(port, ledger)


def test_access_is_opened_once(places: ScriptAccess, port: FakePort, ledger: JobRecordStore) -> None:
    job = known(ledger, run())
    first, second = places.provide_environment(job, view(), BRNO), places.provide_environment(job, view(), BRNO)
    assert first == second
    assert port.did == ["open 12.pbs in 100 for alice"]


def test_failed_access_is_not_recorded_as_open(places: ScriptAccess, port: FakePort, ledger: JobRecordStore) -> None:
    port.refuses = True
    with pytest.raises(Refused):
        places.provide_environment(known(ledger, run()), view(), BRNO)
    assert ledger.all() == [run()]


def test_a_cancelled_run_gets_no_access(places: ScriptAccess, port: FakePort, ledger: JobRecordStore) -> None:
    """Another thread may have cancelled or ended the run during the probes."""
    for phase in (RecordPhase.CANCELLED, RecordPhase.LEAVING, RecordPhase.GONE):
        known(ledger, run(phase=phase))
        places.provide_environment(run(), view(), BRNO)
    known(ledger, run(2))
    places.provide_environment(run(1), view(), BRNO)
    assert port.did == []


def test_the_end_of_a_run_keeps_a_later_runs_access(
    places: ScriptAccess, port: FakePort, ledger: JobRecordStore
) -> None:
    places.provide_environment(known(ledger, run(2)), view(), BRNO)
    places.close(run(1))
    assert port.did == ["open 12.pbs in 100 for alice"]
    places.close(run(2))
    assert port.did[1:] == ["close 12.pbs"]


def test_former_access_is_closed_before_new_access_opens(
    places: ScriptAccess, port: FakePort, ledger: JobRecordStore
) -> None:
    places.provide_environment(known(ledger, run(1)), view(100), BRNO)
    places.provide_environment(known(ledger, run(2)), view(101), BRNO)
    assert port.did == ["open 12.pbs in 100 for alice", "close 12.pbs", "open 12.pbs in 101 for alice"]


def test_a_restarted_agent_reopens_exactly_the_open_access(
    places: ScriptAccess, port: FakePort, ledger: JobRecordStore
) -> None:
    places.provide_environment(known(ledger, run()), view(), BRNO)
    for phase in (RecordPhase.ASKED, RecordPhase.CANCELLED):  # a script may continue after a signal
        known(ledger, ledger.all()[0].model_copy(update={"phase": phase}))
        again = FakePort()
        ScriptAccess(again, ledger).reopen()
        assert again.did == port.did
    known(ledger, ledger.all()[0].model_copy(update={"phase": RecordPhase.LEAVING}))
    over = FakePort()
    ScriptAccess(over, ledger).reopen()
    assert over.did == []
