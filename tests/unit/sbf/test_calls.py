"""What a call that may be a repetition means."""

import pytest
from sbf_fakes.world import spec

from sbf_service.calls import Blocked, Former, New, Same, decide, refuse_other
from virtcloud.model.cluster import ENDED, LEAVING, WANTED, ClusterRequest, State
from virtcloud.model.errors import Conflict, Gone

ASKED = spec("brno-h1")
OTHER = spec("brno-h2", lease_s=60)
OF_BOB = spec("brno-h1", owner="bob")


def request(attempt: int | None = None) -> ClusterRequest:
    return ClusterRequest(spec=ASKED, attempt=attempt)


def former(state: State, attempt: int = 3, wanted: object = ASKED) -> Former:
    return Former(attempt, state, wanted)


def test_an_unknown_key_is_a_new_cluster() -> None:
    assert decide("k", request(), None) == New(0)
    assert decide("k", request(7), None) == New(7)


@pytest.mark.parametrize("state", sorted(WANTED))
def test_without_attempt_the_cluster_that_runs_is_meant(state: State) -> None:
    assert decide("k", request(), former(state)) == Same()


@pytest.mark.parametrize("state", sorted(ENDED))
def test_without_attempt_an_ended_cluster_is_followed_by_a_new_one(state: State) -> None:
    assert decide("k", request(), former(state, wanted=OTHER)) == New(4)


@pytest.mark.parametrize("attempt", [None, 2, 3, 4])
@pytest.mark.parametrize("state", sorted(WANTED | LEAVING))
def test_a_key_belongs_to_its_owner_until_the_cluster_has_ended(state: State, attempt: int | None) -> None:
    with pytest.raises(Conflict, match="the key k belongs to another owner until its cluster has ended: choose"):
        decide("k", request(attempt), former(state, wanted=OF_BOB))


@pytest.mark.parametrize("state", sorted(ENDED))
def test_the_key_of_an_ended_cluster_is_nobodys_and_attempts_count_anew(state: State) -> None:
    assert decide("k", request(), former(state, wanted=OF_BOB)) == New(0)
    assert decide("k", request(1), former(state, wanted=OF_BOB)) == New(1)


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_what_an_owner_had_under_a_key_before_another_is_over(attempt: int) -> None:
    with pytest.raises(Gone, match=f"cluster k: attempt {attempt} is over, the key was another owner's since"):
        decide("k", request(attempt), former(State.RELEASED, 1, OF_BOB), own=2)


def test_an_owner_that_had_a_key_before_another_goes_on_counting() -> None:
    assert decide("k", request(), former(State.RELEASED, 1, OF_BOB), own=2) == New(3)
    assert decide("k", request(5), former(State.RELEASED, 1, OF_BOB), own=2) == New(5)


def test_a_call_about_another_owners_cluster_than_the_newest_is_gone() -> None:
    with pytest.raises(Gone, match="cluster k: the one of bob is over, the key is another owner's since"):
        refuse_other("k", "bob", "alice")
    refuse_other("k", "alice", "alice")
    refuse_other("k", None, "alice")


@pytest.mark.parametrize("state", sorted(LEAVING))
def test_without_attempt_a_cluster_that_is_ending_is_a_conflict(state: State) -> None:
    with pytest.raises(Conflict, match=f"cluster k is still {state}: ask again when it has ended"):
        decide("k", request(), former(state))


@pytest.mark.parametrize("state", sorted(State))
def test_a_lower_attempt_is_gone(state: State) -> None:
    with pytest.raises(Gone, match="cluster k: attempt 2 is over, attempt 3 was seen since"):
        decide("k", request(2), former(state))


@pytest.mark.parametrize("state", sorted(State))
def test_the_same_attempt_is_the_same_cluster_also_when_it_has_ended(state: State) -> None:
    assert decide("k", request(3), former(state)) == Same()


@pytest.mark.parametrize("state", sorted(State))
def test_the_same_attempt_with_another_spec_is_a_conflict_that_names_what_differs(state: State) -> None:
    with pytest.raises(Conflict) as caught:
        decide("k", request(3), former(state, wanted=OTHER))
    assert str(caught.value) == (
        f"cluster k exists and is {state}, and differs in guests, lease_s: choose another key, or end it first"
    )


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_higher_attempt_follows_one_that_has_ended(state: State) -> None:
    assert decide("k", request(9), former(state)) == New(9)


@pytest.mark.parametrize("state", sorted(WANTED | LEAVING))
def test_a_higher_attempt_waits_for_one_that_has_not_ended(state: State) -> None:
    assert decide("k", request(4), former(state)) == Blocked(
        f"cluster k: attempt 3 is still {state} and is being ended: ask again"
    )
