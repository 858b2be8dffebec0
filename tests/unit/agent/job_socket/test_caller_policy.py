from pathlib import Path

import pytest

from virtcloud.agent.job_socket.job_records import JobRecord, JobRecordStore
from virtcloud.agent.job_socket.listener import CallerPolicy
from virtcloud.agent.job_socket.socket_requests import CancelRequest, ListRequest, RemoveRequest, SocketRequest
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import ClusterKey

ALICE, BOB, BATCH = 1001, 1002, 990
KEY = ClusterKey("12.pbs")
LIST = ListRequest(do="list")
CANCEL = CancelRequest(do="cancel", cluster=KEY, attempt=2)


def may(tmp_path: Path, uid: int, request: SocketRequest) -> bool:
    ledger = JobRecordStore(tmp_path)
    ledger.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=2, head=True, user="alice"))
    try:
        CallerPolicy(frozenset({BATCH}), ledger, {"alice": ALICE, "bob": BOB}.get).check(request, uid)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(("uid", "allowed"), [(0, True), (BATCH, True), (ALICE, False), (BOB, False)])
def test_root_and_those_in_the_settings_may_ask_everything(tmp_path: Path, uid: int, *, allowed: bool) -> None:
    assert may(tmp_path, uid, LIST) is allowed


@pytest.mark.parametrize(
    ("uid", "request_", "allowed"),
    [
        (ALICE, CANCEL, True),
        (BOB, CANCEL, False),
        (ALICE, CancelRequest(do="cancel", cluster=KEY, attempt=1), False),
        (ALICE, CancelRequest(do="cancel", cluster=KEY, attempt=3), False),
        (ALICE, CancelRequest(do="cancel", cluster=ClusterKey("13.pbs"), attempt=2), False),
        (ALICE, RemoveRequest(do="remove", cluster=KEY, attempt=2), False),
    ],
)
def test_a_jobs_user_may_only_cancel_its_run(
    tmp_path: Path, uid: int, request_: SocketRequest, *, allowed: bool
) -> None:
    assert may(tmp_path, uid, request_) is allowed


def test_a_job_without_a_user_is_nobodys(tmp_path: Path) -> None:
    ledger = JobRecordStore(tmp_path)
    ledger.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=2))
    with pytest.raises(Forbidden):
        CallerPolicy(frozenset(), ledger).check(CANCEL, ALICE)
