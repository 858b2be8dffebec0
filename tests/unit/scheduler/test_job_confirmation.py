"""Tests of the confirmation of jobs to SBF, and of the job statements that are parsed from Torque's output."""

import threading
from collections.abc import Mapping

import pytest
from support.batch_fakes.scheduler import SERVER, FakeCommands, FakeLog

from virtcloud.model.errors import NoSuchCall, SchedulerUnavailable, ServiceUnreachable, VirtcloudError
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement
from virtcloud.scheduler.job_confirmation import (
    OLD_SBF_PAUSE_S,
    PAUSE_S,
    RETRY_S,
    confirm_requested_jobs,
    confirm_until_stopped,
)
from virtcloud.scheduler.job_states import SchedulerServer
from virtcloud.scheduler.torque_adapter import TorqueScheduler

JOB = (
    "<Data><Job><Job_Id>7.pbssrv</Job_Id><Job_Owner>alice@n1</Job_Owner><job_state>{state}</job_state>"
    "<Resource_List>{resources}<walltime>00:10:00</walltime></Resource_List>{more}"
    "<exec_host>n2.example/0+n2.example/1+n1/0-3</exec_host></Job></Data>"
)
VCLUSTER = "<vcluster>image=a:net=lab</vcluster>"


def statement(
    resources: str = VCLUSTER, state: str = "R", more: str = "", code: int = 0, err: str = ""
) -> JobStatement:
    out = JOB.format(resources=resources, state=state, more=more) if code == 0 else ""
    return TorqueScheduler(FakeCommands({"qstat -x 7": (code, out, err)})).describe_job("7", SERVER, {"n1": "brno-h1"})


def test_a_running_job_is_confirmed_with_owner_hosts_and_network() -> None:
    assert statement() == JobStatement(runs=True, owner="alice", hosts=("brno-h1", "n2"), network="lab", words="runs")


@pytest.mark.parametrize(
    ("resources", "network"),
    [
        ("<other>vcluster=image=a</other>", None),
        ("<net>private</net>", None),
        ("<net>lab</net>", "lab"),
        ("<other>vcluster=image=a:net=lab</other>", "lab"),
    ],
)
def test_the_requested_network_is_confirmed(resources: str, network: str | None) -> None:
    confirmed = statement(resources)
    assert (confirmed.runs, confirmed.network) == (True, network)


def test_the_owner_is_the_jobs_effective_user() -> None:
    assert statement(more="<euser>bob</euser>").owner == "bob"


@pytest.mark.parametrize(
    ("state", "resources", "words"),
    [
        ("Q", VCLUSTER, "is queued"),
        ("C", VCLUSTER, "has finished"),
        ("R", "<nodect>1</nodect>", "runs and requested no cluster"),
        ("R", "<net>No Name</net>", "runs and cannot have a cluster: expected a cluster key"),
    ],
)
def test_a_job_without_a_valid_request_is_denied(state: str, resources: str, words: str) -> None:
    denied = statement(resources, state)
    assert (denied.runs, denied.words[: len(words)]) == (False, words)


def test_an_unknown_job_is_denied() -> None:
    denied = statement(code=153, err="qstat: Unknown Job Id Error 7.pbssrv\n")
    assert denied == JobStatement(runs=False, words="is not known to pbssrv")


def test_an_unavailable_server_confirms_no_job() -> None:
    with pytest.raises(SchedulerUnavailable):
        statement(code=1, err="qstat: cannot connect to server")


class FakeConfirmingScheduler:
    """A batch server that runs every job."""

    def __init__(self) -> None:
        self.queried: list[str] = []
        self.failing: VirtcloudError | None = None

    def server(self) -> SchedulerServer:
        if self.failing:
            raise self.failing
        return SERVER

    def describe_job(self, number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        self.queried.append(f"{number} of {server.name} {dict(names)}")
        return JobStatement(runs=True, owner="alice", hosts=("n1",))


class FakeConfirmationApi:
    """An SBF that requests the confirmation of some jobs."""

    def __init__(self, *keys: str) -> None:
        self.keys = [ClusterKey(key) for key in keys]
        self.statements: list[str] = []
        self.stop = threading.Event()

    def requested_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        assert (server, wait) == ("pbssrv", 30.0)
        return self.keys

    def send_job_statement(self, key: str, statement: JobStatement) -> None:
        self.statements.append(f"{key} {statement.owner}")
        self.stop.set()


def test_every_requested_job_of_this_server_is_confirmed() -> None:
    scheduler, sbf = FakeConfirmingScheduler(), FakeConfirmationApi("7.pbssrv", "8.pbssrv", "x.pbssrv")
    assert confirm_requested_jobs(scheduler, sbf, {"n1": "h"}, FakeLog()) == PAUSE_S
    assert scheduler.queried == ["7 of pbssrv {'n1': 'h'}", "8 of pbssrv {'n1': 'h'}"]
    assert sbf.statements == ["7.pbssrv alice", "8.pbssrv alice"]


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (SchedulerUnavailable("x"), RETRY_S),
        (ServiceUnreachable("x"), RETRY_S),
        (NoSuchCall("no such route"), OLD_SBF_PAUSE_S),
    ],
)
def test_failures_are_retried_later(error: VirtcloudError, pause: float) -> None:
    scheduler, log = FakeConfirmingScheduler(), FakeLog()
    scheduler.failing = error
    assert confirm_requested_jobs(scheduler, FakeConfirmationApi("7.pbssrv"), {}, log) == pause
    assert len(log.events) == 1


def test_a_job_with_invalid_output_delays_no_other_job() -> None:
    scheduler = TorqueScheduler(
        FakeCommands(
            {
                "qstat -B -f": (0, "Server: pbssrv\n    server_state = Active\n    total_jobs = 2\n", ""),
                "qstat -x 6": (0, "<Data><Job>", ""),
                "qstat -x 7": (0, JOB.format(resources=VCLUSTER, state="R", more=""), ""),
            }
        )
    )
    sbf = FakeConfirmationApi("6.pbssrv", "7.pbssrv")
    assert confirm_requested_jobs(scheduler, sbf, {}, FakeLog()) == RETRY_S
    assert sbf.statements == ["7.pbssrv alice"]


def test_confirmations_continue_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtcloud.scheduler.job_confirmation.RETRY_S", 0.01)
    scheduler, sbf, errors = FakeConfirmingScheduler(), FakeConfirmationApi("7.pbssrv"), [ZeroDivisionError()]
    describe_job = scheduler.describe_job

    def fail_once(number: str, server: SchedulerServer, names: Mapping[str, str]) -> JobStatement:
        if errors:
            raise errors.pop()
        return describe_job(number, server, names)

    monkeypatch.setattr(scheduler, "describe_job", fail_once)
    confirm_until_stopped(scheduler, sbf, {}, FakeLog(), sbf.stop)
    assert sbf.statements == ["7.pbssrv alice"]
