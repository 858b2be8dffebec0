"""Tests of decisions about clusters, leases and alerts. The decisions perform no I/O."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_fakes.scheduler import NOW, cluster, job

from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.decision import (
    AlertName,
    ClusterEnd,
    Decision,
    GraceRules,
    Mismatches,
    Observation,
    compute_extension,
    decide,
)
from virtcloud.scheduler.job_states import JobPhase, SchedulerJob, parse_job_number, parse_seconds_or_zero
from virtcloud.scheduler.job_states import SchedulerServer as PbsServer

RULES = GraceRules(observations=2, grace_s=100, grace_empty_s=900)


def observation(clusters: Sequence[object], *jobs: SchedulerJob, empty: bool = False) -> Observation:
    return Observation(clusters, {job.key: job for job in jobs}, empty)  # type: ignore[arg-type]


def decide_all(observations: Sequence[tuple[float, Observation]]) -> Decision:
    mismatches: Mismatches = {}
    result = Decision()
    for now, observed in observations:
        result = decide(observed, mismatches, now, RULES)
        mismatches = result.mismatches
    return result


GONE = observation([cluster("12.pbssrv")], job(12, JobPhase.GONE))
RUNS = observation([cluster("12.pbssrv")], job(12))


def test_a_missing_job_ends_its_cluster_after_the_grace_period() -> None:
    assert decide_all([(0, GONE), (100, GONE)]).ends == (
        ClusterEnd(ClusterKey("12.pbssrv"), 1, "job 12.pbssrv is gone", "alice"),
    )


@pytest.mark.parametrize("observations", [[(0, GONE)], [(0, GONE), (99, GONE)], [(0, GONE), (50, RUNS), (150, GONE)]])
def test_a_cluster_is_kept_within_the_grace_period(
    observations: list[tuple[float, Observation]],
) -> None:
    assert decide_all(observations).ends == ()


def test_without_a_grace_period_several_observations_are_still_needed() -> None:
    rules, mismatches, ends = GraceRules(observations=3, grace_s=0), {}, []
    for now in range(3):
        result = decide(GONE, mismatches, now, rules)
        mismatches, ends = dict(result.mismatches), [*ends, len(result.ends)]
    assert ends == [0, 0, 1]


@pytest.mark.parametrize("phase", [JobPhase.PENDING, JobPhase.GONE])
def test_the_cluster_of_a_job_without_hosts_is_ended(phase: JobPhase) -> None:
    observed = observation([cluster("12.pbssrv")], job(12, phase))
    assert [end.key for end in decide_all([(0, observed), (100, observed)]).ends] == ["12.pbssrv"]


@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.EXITING, JobPhase.UNREADABLE])
def test_the_cluster_of_a_running_or_unreadable_job_is_kept(phase: JobPhase) -> None:
    observed = observation([cluster("12.pbssrv")], job(12, phase))
    assert decide_all([(0, observed), (100, observed), (1000, observed)]).ends == ()


def test_the_cluster_of_a_job_without_an_observation_is_kept() -> None:
    observed = observation([cluster("12.pbssrv")])
    assert decide_all([(0, observed), (100, observed), (1000, observed)]).ends == ()


def test_the_cluster_of_an_earlier_attempt_is_ended() -> None:
    observed = observation([cluster("12.pbssrv", attempt=2)], job(12, attempt=3, description="runs"))
    assert decide_all([(0, observed), (100, observed)]).ends == (
        ClusterEnd(
            ClusterKey("12.pbssrv"), 2, "job 12.pbssrv runs as attempt 3, the cluster belongs to attempt 2", "alice"
        ),
    )


@pytest.mark.parametrize("attempt", [1, 2, None])
def test_the_cluster_of_this_or_the_next_attempt_is_kept(attempt: int | None) -> None:
    observed = observation([cluster("12.pbssrv", attempt=2)], job(12, attempt=attempt))
    assert decide_all([(0, observed), (100, observed)]).ends == ()


def test_mismatches_of_one_attempt_do_not_count_for_the_next() -> None:
    later = observation([cluster("12.pbssrv", attempt=2)], job(12, JobPhase.GONE))
    assert decide_all([(0, GONE), (100, later)]).ends == ()


def test_an_ending_cluster_is_ignored() -> None:
    observed = observation([cluster("12.pbssrv", ClusterState.DRAINING)], job(12, JobPhase.GONE))
    assert decide_all([(0, observed), (100, observed)]).ends == ()


def test_the_grace_period_is_longer_without_any_job() -> None:
    observed = observation([cluster("12.pbssrv")], job(12, JobPhase.GONE), empty=True)
    assert [decide_all([(0, observed), (now, observed)]).ends == () for now in (100, 899, 900)] == [True, True, False]


@pytest.mark.parametrize("clusters_now", [(), (cluster("12.pbssrv", ClusterState.FAILING),)])
def test_a_job_without_its_cluster_raises_an_alert(clusters_now: tuple[object, ...]) -> None:
    observed = observation(clusters_now, job(12, description="runs"))
    assert [(alert.name, alert.text) for alert in decide_all([(0, observed), (100, observed)]).alerts] == [
        (AlertName.JOB_WITHOUT_CLUSTER, "job 12.pbssrv runs and has no cluster")
    ]


def test_a_script_that_never_starts_raises_an_alert() -> None:
    """If the first host's MoM restarts during the set-up of the cluster, PBS never starts the script."""
    observed = observation([cluster("12.pbssrv")], job(12, description="runs", script_started=False))
    assert [decide_all([(0, observed), (now, observed)]).alerts == () for now in (100, 899, 900)] == [True, True, False]
    (alert,) = decide_all([(0, observed), (900, observed)]).alerts
    words = "job 12.pbssrv runs, its cluster is active, and its script does not start; run qrerun -W force 12.pbssrv"
    assert (alert.name, alert.text) == (AlertName.JOB_NOT_BEGUN, words)


def test_a_script_may_wait_while_its_cluster_is_configured() -> None:
    observed = observation(
        [cluster("12.pbssrv", ClusterState.CONFIGURING)], job(12, description="runs", script_started=False)
    )
    assert decide_all([(0, observed), (900, observed)]).alerts == ()


@pytest.mark.parametrize("other", [job(12, wants_cluster=False), job(12, JobPhase.EXITING), job(12, JobPhase.PENDING)])
def test_a_job_that_needs_no_cluster_raises_no_alert(other: SchedulerJob) -> None:
    observed = observation([], other)
    assert decide_all([(0, observed), (100, observed)]).alerts == ()


def test_an_unreadable_job_raises_an_alert_immediately() -> None:
    observed = observation([cluster("12.pbssrv")], job(12, JobPhase.UNREADABLE, description="it is not JSON"))
    assert [(alert.name, alert.text) for alert in decide_all([(0, observed)]).alerts] == [
        (AlertName.JOB_UNREADABLE, "job 12.pbssrv: it is not JSON; the cluster is left unchanged")
    ]


numbers = st.integers(1, 3)
attempts = st.integers(1, 3)
jobs = st.builds(job, numbers, st.sampled_from(JobPhase), st.one_of(st.none(), attempts))
clusters = st.builds(
    lambda number, state, attempt: cluster(f"{number}.pbssrv", state, attempt),
    numbers,
    st.sampled_from(sorted(WANTED_STATES | {ClusterState.DRAINING, ClusterState.FAILING})),
    attempts,
)
good = st.builds(
    lambda views, listed, empty: observation(list({view.key: view for view in views}.values()), *listed, empty=empty),
    st.lists(clusters, max_size=4), st.lists(jobs, max_size=4), st.booleans(),
)  # fmt: skip
steps = st.lists(st.tuples(st.floats(0, 1000), st.one_of(st.none(), good)), max_size=8)


@settings(deadline=None)
@given(steps)
def test_a_recently_running_job_keeps_its_cluster(
    timed_observations: list[tuple[float, Observation | None]],
) -> None:
    mismatches: Mismatches = {}
    now, recent = 0.0, []
    for pause, observed in timed_observations:
        now += pause
        if observed is None:
            mismatches = {}  # a failed observation
            continue
        recent = [*recent[-1:], observed]
        result = decide(observed, mismatches, now, RULES)
        mismatches = result.mismatches
        for end in result.ends:
            alive = [job for earlier in recent if (job := earlier.jobs.get(end.key)) and may_run(job, end.attempt)]
            assert (alive, len(recent)) == ([], 2)


def may_run(reported_job: SchedulerJob, attempt: int) -> bool:
    running = reported_job.phase in {JobPhase.RUNNING, JobPhase.EXITING, JobPhase.UNREADABLE}
    overtaken = (
        reported_job.phase is JobPhase.RUNNING and reported_job.attempt is not None and reported_job.attempt > attempt
    )
    return running and not overtaken


@settings(deadline=None)
@given(steps)
def test_nothing_is_ended_after_a_failed_observation(
    timed_observations: list[tuple[float, Observation | None]],
) -> None:
    now, mismatches, fresh = 0.0, {}, True
    for pause, observed in timed_observations:
        now += pause
        result = Decision() if observed is None else decide(observed, mismatches, now, RULES)
        assert not (fresh and result.ends)
        mismatches, fresh = dict(result.mismatches), observed is None


@settings(deadline=None)
@given(good)
def test_long_mismatches_end_clusters(observed: Observation) -> None:
    mismatched = {
        (about.key, about.attempt) for about in decide(observed, {}, 0, RULES).mismatches if about.kind == "cluster"
    }
    assert {(end.key, end.attempt) for end in decide_all([(0, observed), (900, observed)]).ends} == mismatched


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "when-something-fails.md"


@pytest.mark.parametrize("name", AlertName)
def test_every_alert_has_a_remedy_in_the_documentation(name: AlertName) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert all(len(cell) > 8 for cell in row.strip("|").split("|"))


@pytest.mark.parametrize(
    ("lease_s", "walltime_s", "used_s", "wanted"),
    [
        (4200, 3600, 0, None),  # the lease that the hook requested
        (4200, 7200, 0, 8100),  # qalter -l walltime=2:00:00
        (3700, 3600, 0, 4500),
        (3720, 3600, 0, None),
        (100, 3600, 3600, 900),  # the job has used its walltime and has not ended
        (1000, 3600, 3000, None),
        (700, 3600, 3000, 1500),  # the job was suspended meanwhile
        (100, 0, 0, 900),  # an invalid walltime
    ],
)
def test_a_lease_covers_the_remaining_walltime(
    lease_s: float, walltime_s: int, used_s: int, wanted: float | None
) -> None:
    seconds = compute_extension(
        cluster("12.pbssrv", lease_s=lease_s), job(12, walltime_s=walltime_s, used_s=used_s), NOW
    )
    assert seconds == wanted


def test_an_extended_lease_is_not_extended_again_immediately() -> None:
    held = cluster("12.pbssrv", lease_s=8100)
    assert compute_extension(held, job(12, walltime_s=7200, used_s=0), NOW + timedelta(seconds=600)) is None


def test_the_lease_of_a_suspended_job_never_ends_between_rounds() -> None:
    suspended, lease_s = job(12, walltime_s=3600, used_s=3540), 960.0
    for _ in range(5):
        wanted = compute_extension(cluster("12.pbssrv", lease_s=lease_s), suspended, NOW, interval_s=600)
        lease_s = (wanted or lease_s) - 600
        assert lease_s > 0


@pytest.mark.parametrize("phase", [JobPhase.EXITING, JobPhase.PENDING, JobPhase.GONE, JobPhase.UNREADABLE])
def test_only_running_jobs_extend_leases(phase: JobPhase) -> None:
    assert compute_extension(cluster("12.pbssrv", lease_s=1), job(12, phase), NOW) is None


def test_former_attempts_and_ending_clusters_are_not_extended() -> None:
    assert compute_extension(cluster("12.pbssrv", lease_s=1), job(12, attempt=2), NOW) is None
    assert compute_extension(cluster("12.pbssrv", ClusterState.DRAINING, lease_s=1), job(12), NOW) is None


@pytest.mark.parametrize(("text", "read"), [("168:00:00", 604800), ("90", 90), ("soon", 0), (None, 0), ("1:30", 90)])
def test_durations_are_parsed_in_pbs_notation(text: object, read: int) -> None:
    assert parse_seconds_or_zero(text) == read


@pytest.mark.parametrize(
    ("key", "number"),
    [("12.pbssrv.example.org", "12"), ("12.pbssrv", None), ("demo", None), ("12.other.example.org", None)],
)
def test_a_cluster_key_contains_the_job_number_and_server(key: str, number: str | None) -> None:
    assert parse_job_number(key, PbsServer("PBSsrv.example.org", empty=False)) == number
