from virtcloud.agent.local.absence import absent
from virtcloud.agent.local.job import Job, Phase
from virtcloud.model.values import ClusterKey

A = Job(cluster=ClusterKey("a"), attempt=1, head=True)
SISTER = Job(cluster=ClusterKey("b"), attempt=1)
LEAVING = Job(cluster=ClusterKey("c"), attempt=1, head=True, phase=Phase.LEAVING)
CANCELLED = Job(cluster=ClusterKey("d"), attempt=1, head=True, phase=Phase.CANCELLED)


def test_the_first_miss_only_starts_the_clock() -> None:
    found = absent([A], set(), {}, now=1000, grace=0)
    assert (found.since, found.overdue) == ({A.run: 1000}, ())


def test_a_second_miss_counts_once_the_grace_period_is_over() -> None:
    early = absent([A], set(), {A.run: 1000}, now=1119, grace=120)
    late = absent([A], set(), {A.run: 1000}, now=1120, grace=120)
    assert (early.overdue, early.since, late.overdue) == ((), {A.run: 1000}, (A,))


def test_a_job_that_was_seen_in_between_begins_anew() -> None:
    assert absent([A], {"a"}, {A.run: 1000}, now=1060, grace=120).since == {}


def test_only_jobs_that_do_not_leave_already_are_missed() -> None:
    found = absent([SISTER, LEAVING, CANCELLED], set(), {}, now=1, grace=0)
    assert set(found.since) == {SISTER.run, CANCELLED.run}
