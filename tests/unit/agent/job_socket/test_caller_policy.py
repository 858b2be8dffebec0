from pathlib import Path

import pytest

from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord
from virtcloud.agent.job_socket.listener import CallerPolicy
from virtcloud.agent.job_socket.socket_requests import CancelRequest, ListRequest, RemoveRequest, SocketRequest
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import ClusterKey

ALICE, BOB, BATCH = 1001, 1002, 990
KEY = ClusterKey("12.pbs")
LIST = ListRequest(do="list")
CANCEL = CancelRequest(do="cancel", cluster=KEY, attempt=2)


def is_permitted(tmp_path: Path, uid: int, request: SocketRequest) -> bool:
    records = JobRecordStore(tmp_path)
    records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=2, head=True, user="alice"))
    try:
        CallerPolicy(frozenset({BATCH}), records, {"alice": ALICE, "bob": BOB}.get).check(request, uid)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(("uid", "allowed"), [(0, True), (BATCH, True), (ALICE, False), (BOB, False)])
def test_root_and_users_in_the_settings_may_send_everything(tmp_path: Path, uid: int, *, allowed: bool) -> None:
    assert is_permitted(tmp_path, uid, LIST) is allowed


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
def test_a_jobs_user_may_only_cancel_the_jobs_run(
    tmp_path: Path, uid: int, request_: SocketRequest, *, allowed: bool
) -> None:
    assert is_permitted(tmp_path, uid, request_) is allowed


def test_nobody_may_cancel_a_job_without_user(tmp_path: Path) -> None:
    records = JobRecordStore(tmp_path)
    records.change(KEY, lambda _: JobRecord(cluster=KEY, attempt=2))
    with pytest.raises(Forbidden):
        CallerPolicy(frozenset(), records).check(CANCEL, ALICE)
