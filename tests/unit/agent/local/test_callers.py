from pathlib import Path

import pytest

from virtcloud.agent.local.callers import Callers
from virtcloud.agent.local.job import Job
from virtcloud.agent.local.ledger import Ledger
from virtcloud.agent.local.requests import Cancel, ListJobs, Remove, Request
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import ClusterKey

ALICE, BOB, BATCH = 1001, 1002, 990
KEY = ClusterKey("12.pbs")
LIST = ListJobs(do="list")
CANCEL = Cancel(do="cancel", cluster=KEY, attempt=2)


def may(tmp_path: Path, uid: int, request: Request) -> bool:
    ledger = Ledger(tmp_path)
    ledger.change(KEY, lambda _: Job(cluster=KEY, attempt=2, head=True, user="alice"))
    try:
        Callers(frozenset({BATCH}), ledger, {"alice": ALICE, "bob": BOB}.get).check(request, uid)
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
        (ALICE, Cancel(do="cancel", cluster=KEY, attempt=1), False),
        (ALICE, Cancel(do="cancel", cluster=KEY, attempt=3), False),
        (ALICE, Cancel(do="cancel", cluster=ClusterKey("13.pbs"), attempt=2), False),
        (ALICE, Remove(do="remove", cluster=KEY, attempt=2), False),
    ],
)
def test_a_jobs_user_may_give_up_its_own_run_and_no_more(
    tmp_path: Path, uid: int, request_: Request, *, allowed: bool
) -> None:
    assert may(tmp_path, uid, request_) is allowed


def test_a_job_without_a_user_is_nobodys(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.change(KEY, lambda _: Job(cluster=KEY, attempt=2))
    with pytest.raises(Forbidden):
        Callers(frozenset(), ledger).check(CANCEL, ALICE)
