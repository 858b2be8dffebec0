"""Tests of the access of jobs' scripts to guests.

An access is lost if it ended without a call of ``close``, for example because its relay ended. The agent opens a lost
access again.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from virtcloud.agent.job_access.access import JobAccess, ScriptEnvironment
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.model.errors import Refused, ServiceUnreachable
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView

PEERS = ClusterPeers.model_validate(
    {"key": "12.pbs", "user": "me", "peers": [{"name": "g1", "cluster": "12.pbs", "addresses": ["10.0.0.1/24"]}]}
)
KEY, BRNO = ClusterKey("12.pbs"), Name("brno")


def no_answer(_key: str, _id: str) -> ClusterPeers:
    raise ServiceUnreachable("SBF does not answer")


@dataclass
class FakeAccessProvider:
    """A provider that records the opened and the closed accesses."""

    calls: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    refuses: bool = False
    lost: set[str] = field(default_factory=set)
    failure: type[Exception] = Refused

    def open(self, access: JobAccess) -> ScriptEnvironment:
        if self.refuses:
            raise self.failure("no")
        self.calls.append(f"open {access.key} in {access.vlan} for {access.user}")
        self.peers.append(f"{access.login}: {', '.join(peer.name for peer in access.peers)}")
        return {"VCLUSTER_HOSTS": "/x"}

    def close(self, key: str) -> None:
        self.calls.append(f"close {key}")

    def is_lost(self, key: str) -> bool:
        return key in self.lost


def view(vlan: int = 100) -> ClusterView:
    keys = {"key": KEY, "id": "x", "attempt": 1, "version": 1, "state": "active", "lease_ends": "2026-01-01T00:00:00Z"}
    return ClusterView.model_validate(
        keys | {"vlans": {BRNO: vlan}, "spec": {"owner": "alice", "hosts": ["brno-h1"], "name": "demo"}}
    )


def job_record(attempt: int = 1, phase: RecordPhase = RecordPhase.ASKED) -> JobRecord:
    return JobRecord(cluster=KEY, attempt=attempt, phase=phase, head=True, user="alice")


def record(records: JobRecordStore, job: JobRecord) -> JobRecord:
    return records.change(KEY, lambda _: job)


@pytest.fixture
def provider() -> FakeAccessProvider:
    return FakeAccessProvider()


@pytest.fixture
def records(tmp_path: Path) -> JobRecordStore:
    return JobRecordStore(tmp_path)


@pytest.fixture
def script_access(provider: FakeAccessProvider, records: JobRecordStore) -> ScriptAccess:
    return ScriptAccess(provider, records, lambda _key, _id: PEERS)


def test_access_is_opened_once(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    job = record(records, job_record())
    first, second = (
        script_access.provide_environment(job, view(), BRNO),
        script_access.provide_environment(job, view(), BRNO),
    )
    assert first == second
    assert provider.calls == ["open 12.pbs in 100 for alice"]


def test_failed_access_is_not_recorded_as_open(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    provider.refuses = True
    with pytest.raises(Refused):
        script_access.provide_environment(record(records, job_record()), view(), BRNO)
    assert records.all() == [job_record()]


def test_a_cancelled_or_ended_run_gets_no_access(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    """Another thread may cancel or end the run while guests are probed."""
    for phase in (RecordPhase.CANCELLED, RecordPhase.LEAVING, RecordPhase.GONE):
        record(records, job_record(phase=phase))
        script_access.provide_environment(job_record(), view(), BRNO)
    record(records, job_record(2))
    script_access.provide_environment(job_record(1), view(), BRNO)
    assert provider.calls == []


def test_ending_a_run_does_not_close_a_later_runs_access(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    script_access.provide_environment(record(records, job_record(2)), view(), BRNO)
    script_access.close(job_record(1))
    assert provider.calls == ["open 12.pbs in 100 for alice"]
    script_access.close(job_record(2))
    assert provider.calls[1:] == ["close 12.pbs"]


def test_former_access_is_closed_before_new_access_opens(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    script_access.provide_environment(record(records, job_record(1)), view(100), BRNO)
    script_access.provide_environment(record(records, job_record(2)), view(101), BRNO)
    assert provider.calls == ["open 12.pbs in 100 for alice", "close 12.pbs", "open 12.pbs in 101 for alice"]


def test_a_restarted_agent_reopens_exactly_the_open_access(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    script_access.provide_environment(record(records, job_record()), view(), BRNO)
    # the access of a cancelled job is opened too: the script may survive the signal (``qsig -s TERM``)
    for phase in (RecordPhase.ASKED, RecordPhase.CANCELLED):
        record(records, records.all()[0].model_copy(update={"phase": phase}))
        restarted = FakeAccessProvider()
        ScriptAccess(restarted, records, no_answer).reopen()
        assert restarted.calls == provider.calls
    record(records, records.all()[0].model_copy(update={"phase": RecordPhase.LEAVING}))
    restarted = FakeAccessProvider()
    ScriptAccess(restarted, records, no_answer).reopen()
    assert restarted.calls == []


@pytest.mark.parametrize("failure", [Refused, BrokenPipeError])
def test_after_a_reboot_the_access_opens_when_its_bridge_exists(
    script_access: ScriptAccess, records: JobRecordStore, failure: type[Exception]
) -> None:
    script_access.provide_environment(record(records, job_record()), view(), BRNO)
    restarted = FakeAccessProvider(refuses=True, failure=failure)
    access = ScriptAccess(restarted, records, no_answer)
    assert [access.reopen(), access.reopen()] == [False, False]
    restarted.refuses = False
    assert access.reopen()
    assert restarted.calls == ["open 12.pbs in 100 for alice"]


def test_an_access_without_its_relay_is_opened_again(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    script_access.provide_environment(record(records, job_record()), view(), BRNO)
    script_access.reopen()
    assert len(provider.calls) == 1
    provider.lost.add(KEY)
    script_access.reopen()
    assert provider.calls == ["open 12.pbs in 100 for alice"] * 2


def test_a_lost_access_that_cannot_open_keeps_its_variables(
    script_access: ScriptAccess, provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    job = record(records, job_record())
    script_access.provide_environment(job, view(), BRNO)
    provider.lost.add(KEY)
    provider.refuses = True
    assert not script_access.reopen()
    assert script_access.provide_environment(job, view(), BRNO)["VCLUSTER_HOSTS"] == "/x"
    provider.refuses = False
    script_access.provide_environment(record(records, job_record(2)), view(101), BRNO)
    assert provider.calls[1:] == [f"close {KEY}", "open 12.pbs in 101 for alice"]


def test_a_restarted_agent_keeps_the_access_of_a_later_run(
    script_access: ScriptAccess, records: JobRecordStore
) -> None:
    """The later run is announced, and its access is opened, after the agent has listed the records."""
    script_access.provide_environment(record(records, job_record()), view(), BRNO)
    restarted = FakeAccessProvider()
    access = ScriptAccess(restarted, records, no_answer)

    def announce() -> None:
        access.provide_environment(record(records, job_record(2)), view(101), BRNO)

    access.reopen(announce)
    assert restarted.calls == ["open 12.pbs in 101 for alice"]


def test_the_access_is_recorded_with_the_clusters_id(script_access: ScriptAccess, records: JobRecordStore) -> None:
    script_access.provide_environment(record(records, job_record()), view(), BRNO)
    opening = records.all()[0].opening
    assert opening is not None
    assert opening.network == "x"


def test_a_members_access_is_recorded_with_the_networks_id(
    provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    """The view of a cluster that joined a network contains the network's key, but not the network's ID.

    The network's ID must be recorded, because after a reboot another network may have the VLAN ID of this network.
    """
    peers = PEERS.model_copy(update={"network": "n"})
    access = ScriptAccess(provider, records, lambda _key, _id: peers)
    member = view().model_copy(update={"network": ClusterKey("demo")})
    for _ in range(2):
        access.provide_environment(record(records, records.get(KEY) or job_record()), member, BRNO)
    opening = records.all()[0].opening
    assert opening is not None
    assert (opening.network, len(provider.calls)) == ("n", 1)


def test_access_to_an_unknown_network_is_not_reopened(provider: FakeAccessProvider, records: JobRecordStore) -> None:
    """SBF did not answer, so the ID of the network that the cluster joined is unknown.

    When the agent starts again, another network may have the VLAN ID of this network.
    """
    member = view().model_copy(update={"network": ClusterKey("demo")})
    ScriptAccess(provider, records, no_answer).provide_environment(record(records, job_record()), member, BRNO)
    restarted = FakeAccessProvider()
    assert ScriptAccess(restarted, records, no_answer).reopen()
    assert (provider.calls, restarted.calls) == (["open 12.pbs in 100 for alice"], [])


def test_an_upgraded_agent_does_not_interrupt_open_access(
    provider: FakeAccessProvider, records: JobRecordStore
) -> None:
    """An earlier version of the agent recorded no ID of the network."""
    job = record(records, job_record())
    ScriptAccess(provider, records, no_answer).provide_environment(job, view(), BRNO)
    (known,) = records.all()
    assert known.opening is not None
    record(records, known.model_copy(update={"opening": known.opening.model_copy(update={"network": None})}))
    upgraded = FakeAccessProvider()
    access = ScriptAccess(upgraded, records, no_answer)
    access.reopen()
    access.provide_environment(job, view(), BRNO)
    assert upgraded.calls == provider.calls


def test_host_keys_are_read_from_sbf_once(provider: FakeAccessProvider, records: JobRecordStore) -> None:
    job = record(records, job_record())
    ScriptAccess(provider, records, lambda _key, _id: PEERS).provide_environment(job, view(), BRNO)
    ScriptAccess(provider, records, no_answer).provide_environment(job, view(), BRNO)
    assert provider.peers == ["me: g1", "me: g1"]


def test_a_job_starts_even_if_sbf_sends_no_host_keys(
    provider: FakeAccessProvider, records: JobRecordStore, capsys: pytest.CaptureFixture[str]
) -> None:
    ScriptAccess(provider, records, no_answer).provide_environment(record(records, job_record()), view(), BRNO)
    assert provider.peers == ["None: "]
