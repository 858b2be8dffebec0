"""Tests of repeated and late requests for the same cluster key."""

import pytest
from support.sbf_fakes.world import spec

from sbf_service.domain.idempotency import (
    AttemptBlocked,
    CreateAttempt,
    LatestAttempt,
    NoChange,
    check_owner,
    resolve_request,
)
from virtcloud.model.cluster import (
    ENDED_STATES,
    LEAVING_STATES,
    WANTED_STATES,
    ClusterRequest,
    ClusterSpec,
    ClusterState,
)
from virtcloud.model.errors import Conflict, Gone

ASKED = spec("brno-h1")
OTHER = spec("brno-h2", lease_s=60)
OF_BOB = spec("brno-h1", owner="bob")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"


def with_key(key: str | None) -> ClusterSpec:
    return ASKED.model_copy(update={"authorized_keys": (key,) if key else ()})


def request(attempt: int | None = None) -> ClusterRequest:
    return ClusterRequest(spec=ASKED, attempt=attempt)


def former(state: ClusterState, attempt: int = 3, wanted: ClusterSpec = ASKED) -> LatestAttempt:
    return LatestAttempt(attempt, state, wanted)


def test_an_unknown_key_creates_a_cluster() -> None:
    assert resolve_request("k", request(), None) == CreateAttempt(0)
    assert resolve_request("k", request(7), None) == CreateAttempt(7)


@pytest.mark.parametrize("state", sorted(WANTED_STATES))
def test_without_attempt_a_running_cluster_is_unchanged(state: ClusterState) -> None:
    assert resolve_request("k", request(), former(state)) == NoChange()


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_without_attempt_an_ended_cluster_is_created_again(state: ClusterState) -> None:
    assert resolve_request("k", request(), former(state, wanted=OTHER)) == CreateAttempt(4)


@pytest.mark.parametrize("attempt", [None, 2, 3, 4])
@pytest.mark.parametrize("state", sorted(WANTED_STATES | LEAVING_STATES))
def test_a_key_belongs_to_the_owner_until_its_clusters_end(state: ClusterState, attempt: int | None) -> None:
    with pytest.raises(Conflict, match="the key k belongs to another owner until its cluster has ended: choose"):
        resolve_request("k", request(attempt), former(state, wanted=OF_BOB))


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_another_owner_may_reuse_the_key_of_an_ended_cluster(state: ClusterState) -> None:
    assert resolve_request("k", request(), former(state, wanted=OF_BOB)) == CreateAttempt(0)
    assert resolve_request("k", request(1), former(state, wanted=OF_BOB)) == CreateAttempt(1)


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_attempts_before_another_owners_cluster_stay_ended(attempt: int) -> None:
    with pytest.raises(Gone, match=f"cluster k: attempt {attempt} has ended, and the key has belonged"):
        resolve_request("k", request(attempt), former(ClusterState.RELEASED, 1, OF_BOB), own_attempt=2)


def test_a_returning_owner_continues_its_attempt_numbers() -> None:
    assert resolve_request("k", request(), former(ClusterState.RELEASED, 1, OF_BOB), own_attempt=2) == CreateAttempt(3)
    assert resolve_request("k", request(5), former(ClusterState.RELEASED, 1, OF_BOB), own_attempt=2) == CreateAttempt(5)


def test_a_call_about_a_former_owners_cluster_is_gone() -> None:
    with pytest.raises(Gone, match="cluster k: the cluster of bob has ended, and the key now belongs to another owner"):
        check_owner("k", "bob", "alice")
    check_owner("k", "alice", "alice")
    check_owner("k", None, "alice")


@pytest.mark.parametrize("state", sorted(LEAVING_STATES))
def test_without_attempt_an_ending_cluster_is_a_conflict(state: ClusterState) -> None:
    with pytest.raises(Conflict, match=f"cluster k is still {state}: try again when the cluster has ended"):
        resolve_request("k", request(), former(state))


@pytest.mark.parametrize("state", sorted(ClusterState))
def test_a_lower_attempt_is_gone(state: ClusterState) -> None:
    with pytest.raises(Gone, match="cluster k: attempt 2 has ended: the latest is attempt 3"):
        resolve_request("k", request(2), former(state))


@pytest.mark.parametrize("state", sorted(ClusterState))
def test_repeating_an_attempt_changes_nothing_even_after_its_end(state: ClusterState) -> None:
    assert resolve_request("k", request(3), former(state)) == NoChange()


@pytest.mark.parametrize(("first", "second"), [(KEY, OTHER_KEY), (KEY, None), (None, KEY)])
def test_a_repeated_attempt_may_have_other_ssh_keys(first: str | None, second: str | None) -> None:
    repeated = ClusterRequest(spec=with_key(second), attempt=3)
    assert resolve_request("k", repeated, former(ClusterState.ACTIVE, wanted=with_key(first))) == NoChange()


def test_without_attempt_other_ssh_keys_are_a_conflict() -> None:
    with pytest.raises(Conflict, match="differs from this request in authorized_keys"):
        resolve_request("k", request(), former(ClusterState.ACTIVE, wanted=with_key(KEY)))


@pytest.mark.parametrize("state", sorted(ClusterState))
def test_repeating_an_attempt_with_another_spec_is_a_conflict(state: ClusterState) -> None:
    with pytest.raises(Conflict) as caught:
        resolve_request("k", request(3), former(state, wanted=OTHER))
    assert str(caught.value) == (
        f"cluster k exists and is {state}, and differs from this request in guests, lease_s: "
        f"choose another key, or {'a higher attempt number' if state in ENDED_STATES else 'end the cluster first'}"
    )


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_higher_attempt_follows_an_ended_attempt(state: ClusterState) -> None:
    assert resolve_request("k", request(9), former(state)) == CreateAttempt(9)


@pytest.mark.parametrize("state", sorted(WANTED_STATES | LEAVING_STATES))
def test_a_higher_attempt_waits_for_the_end_of_the_latest(state: ClusterState) -> None:
    assert resolve_request("k", request(4), former(state)) == AttemptBlocked(
        f"cluster k: attempt 3 is {state} and is being ended: try again later"
    )
