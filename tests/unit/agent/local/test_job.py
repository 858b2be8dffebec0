"""What each request makes of what is known, written out as a table."""

import pytest

from virtcloud.agent.local.job import Job, Phase, announced, asked_for, cancelled, gone, leaving
from virtcloud.agent.local.requests import Run, Up
from virtcloud.model.errors import AttemptWaits, Gone, NotFound, VirtcloudError
from virtcloud.model.values import ClusterKey

KEY = ClusterKey("12.pbs")
Outcome = tuple[int, str] | str
"""The attempt and phase that come of it, or the slug of the error."""


def job(attempt: int, phase: Phase = Phase.ASKED, user: str = "alice") -> Job:
    return Job(cluster=KEY, attempt=attempt, phase=phase, head=True, user=user)


def outcome(verb: str, known: Job | None, attempt: int) -> Outcome:
    run = Run(KEY, attempt, "alice")
    verbs = {
        "up": lambda: announced(known, Up(do="up", cluster=KEY, attempt=attempt, head=True, user="alice")),
        "cancel": lambda: cancelled(known, run, "qdel"),
        "remove": lambda: leaving(known, run, "its job ended"),
        "state": lambda: asked_for(known, run),
    }
    try:
        made = verbs[verb]()
    except VirtcloudError as error:
        return error.slug
    return made.attempt, made.phase.value


KNOWN = {
    "nothing": None,
    "1 asked": job(1),
    "1 cancelled": job(1, Phase.CANCELLED),
    "1 leaving": job(1, Phase.LEAVING),
    "1 gone": job(1, Phase.GONE),
    "2 asked": job(2),
    "2 gone": job(2, Phase.GONE),
}
ASKED, CANCELLED, LEAVING, DONE = (1, "asked"), (1, "cancelled"), (1, "leaving"), (1, "gone")


@pytest.mark.parametrize(
    ("known", "up", "state", "cancel", "remove"),
    [
        ("nothing", ASKED, "not-found", CANCELLED, LEAVING),
        ("1 asked", ASKED, ASKED, CANCELLED, LEAVING),
        ("1 cancelled", CANCELLED, CANCELLED, CANCELLED, LEAVING),
        ("1 leaving", "gone", LEAVING, LEAVING, LEAVING),
        ("1 gone", "gone", DONE, DONE, DONE),
        ("2 asked", "gone", "gone", "gone", "gone"),
        ("2 gone", "gone", "gone", "gone", "gone"),
    ],
)
def test_each_request_about_the_first_run(
    known: str, up: Outcome, state: Outcome, cancel: Outcome, remove: Outcome
) -> None:
    seen = [outcome(verb, KNOWN[known], 1) for verb in ("up", "state", "cancel", "remove")]
    assert seen == [up, state, cancel, remove]


@pytest.mark.parametrize("known", ["1 asked", "1 cancelled", "1 leaving", "1 gone"])
def test_a_later_run_takes_the_place_of_an_earlier_one_in_any_phase(known: str) -> None:
    seen = {verb: outcome(verb, KNOWN[known], 2) for verb in ("up", "state", "cancel", "remove")}
    assert seen == {"up": (2, "asked"), "state": "not-found", "cancel": (2, "cancelled"), "remove": (2, "leaving")}


def test_a_run_that_is_not_counted_waits_until_its_former_one_is_gone_and_begins_anew() -> None:
    with pytest.raises(AttemptWaits, match=r"cluster 12\.pbs is still being removed from its former run: ask again"):
        announced(job(0, Phase.LEAVING), Up(do="up", cluster=KEY, attempt=0))
    assert (gone(job(0)), gone(job(1))) == (None, job(1, Phase.GONE))


def test_what_was_said_first_of_a_run_stays_when_less_is_said() -> None:
    known = job(1)
    assert announced(known, Up(do="up", cluster=KEY, attempt=1)) == known
    assert leaving(cancelled(known, Run(KEY, 1), "qdel"), Run(KEY, 1), "its job ended").reason == "qdel"


def test_late_calls_are_told_what_came_since() -> None:
    with pytest.raises(Gone, match=r"^cluster 12\.pbs: attempt 1 is over, attempt 2 came here since$"):
        leaving(job(2), Run(KEY, 1), "")
    with pytest.raises(NotFound, match=r"^cluster 12\.pbs, attempt 3 was never announced to this host's agent"):
        asked_for(job(2), Run(KEY, 3))


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("phase", sorted(Phase))
def test_only_an_announcement_takes_the_place_of_another_users_job(phase: Phase, attempt: int) -> None:
    """A batch system that was set up anew gives its numbers again; what its hosts remember of the old ones is late."""
    seen = {verb: outcome(verb, job(2, phase, "bob"), attempt) for verb in ("up", "state", "cancel", "remove")}
    assert seen == {"up": (attempt, "asked"), "state": "gone", "cancel": "gone", "remove": "gone"}


def test_a_run_that_is_not_counted_waits_for_another_users_to_be_gone_too() -> None:
    with pytest.raises(AttemptWaits):
        announced(job(0, Phase.LEAVING, "bob"), Up(do="up", cluster=KEY, attempt=0, user="alice"))
