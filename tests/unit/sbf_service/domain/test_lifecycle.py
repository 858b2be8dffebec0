"""Tests of the transitions of clusters. Each rule of the lifecycle has a test."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbf_service.domain.cluster_status import ClusterStatus, PlacementStatus, describe_unconfirmed
from sbf_service.domain.lifecycle import ClusterTransition, find_transition
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, TRANSITIONS, WANTED_STATES, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DRAIN = timedelta(seconds=60)
ELEMENTS = {"brno-h1": ElementKind.HOST, "brno-sw1": ElementKind.SWITCH}


def part(
    element: str, added: int = 5, removed: int | None = None, confirmed: int = 0, **changes: Any
) -> PlacementStatus:
    return PlacementStatus(Name(element), ELEMENTS[element], Name("brno"), added, removed, confirmed, **changes)


def cluster(state: ClusterState, *parts: PlacementStatus, **changes: Any) -> ClusterStatus:
    facts: dict[str, Any] = {
        "id": "c1",
        "state": state,
        "placements": parts,
        "deadline": NOW + timedelta(seconds=120),
        "lease_ends": NOW + timedelta(hours=4),
    }
    return ClusterStatus(**(facts | changes))


def next_transition(one: ClusterStatus) -> ClusterTransition | None:
    return find_transition(one, NOW, DRAIN)


def test_configuring_becomes_active_when_every_element_confirmed() -> None:
    one = cluster(ClusterState.CONFIGURING, part("brno-sw1", confirmed=5), part("brno-h1", confirmed=9))
    assert next_transition(one) == ClusterTransition(ClusterState.ACTIVE)


def test_configuring_continues_while_an_element_has_not_confirmed() -> None:
    assert (
        next_transition(cluster(ClusterState.CONFIGURING, part("brno-sw1", confirmed=5), part("brno-h1", confirmed=4)))
        is None
    )


def test_configuring_fails_at_its_deadline_with_the_unconfirmed_elements() -> None:
    one = cluster(
        ClusterState.CONFIGURING,
        part("brno-sw1", trouble="switch brno-sw1 does not answer", reachable=False),
        part("brno-h1"),
        deadline=NOW,
    )
    assert next_transition(one) == ClusterTransition(
        ClusterState.FAILING,
        "not set up in time: host brno-h1 at brno has not confirmed (its agent has never called SBF); "
        "switch brno-sw1 at brno has not confirmed (switch brno-sw1 does not answer)",
    )


def test_a_cluster_complete_at_its_deadline_is_active() -> None:
    assert next_transition(
        cluster(ClusterState.CONFIGURING, part("brno-sw1", confirmed=5), deadline=NOW)
    ) == ClusterTransition(ClusterState.ACTIVE)


def test_an_element_that_lost_a_cluster_degrades_it() -> None:
    assert next_transition(cluster(ClusterState.ACTIVE, part("brno-sw1", confirmed=0))) == ClusterTransition(
        ClusterState.DEGRADED, "being restored: switch brno-sw1 at brno has not confirmed"
    )


def test_an_unreachable_element_degrades_a_cluster() -> None:
    one = cluster(ClusterState.ACTIVE, part("brno-sw1", confirmed=5, reachable=False, trouble="cut off"))
    assert next_transition(one) == ClusterTransition(
        ClusterState.DEGRADED, "being restored: switch brno-sw1 at brno has not confirmed (cut off)"
    )


def test_an_error_about_another_cluster_degrades_nothing() -> None:
    assert (
        next_transition(cluster(ClusterState.ACTIVE, part("brno-sw1", confirmed=5, trouble="no room for VLAN 7")))
        is None
    )


def test_degraded_becomes_active_again() -> None:
    assert next_transition(cluster(ClusterState.DEGRADED, part("brno-sw1", confirmed=5))) == ClusterTransition(
        ClusterState.ACTIVE
    )


@pytest.mark.parametrize("state", sorted(WANTED_STATES))
def test_a_cluster_drains_when_its_lease_ends(state: ClusterState) -> None:
    assert next_transition(cluster(state, part("brno-sw1", confirmed=5), lease_ends=NOW)) == ClusterTransition(
        ClusterState.DRAINING, "its lease ended at 2026-01-01 12:00:00 UTC"
    )


@pytest.mark.parametrize(
    ("confirmed", "transition"), [(5, ClusterTransition(ClusterState.ACTIVE)), (4, None)], ids=["complete", "waiting"]
)
def test_without_deadlines_no_lease_ends_and_no_setup_fails(
    confirmed: int, transition: ClusterTransition | None
) -> None:
    one = cluster(ClusterState.CONFIGURING, part("brno-sw1", confirmed=confirmed), lease_ends=NOW, deadline=NOW)
    assert find_transition(one, NOW, DRAIN, with_deadlines=False) == transition


@pytest.mark.parametrize(
    ("state", "end"), [(ClusterState.DRAINING, ClusterState.RELEASED), (ClusterState.FAILING, ClusterState.FAILED)]
)
def test_claims_are_freed_when_every_removal_is_confirmed(state: ClusterState, end: ClusterState) -> None:
    parts = part("brno-sw1", removed=8, confirmed=8), part("brno-h1", removed=7, confirmed=9)
    assert next_transition(cluster(state, *parts, leaving_since=NOW)) == ClusterTransition(end, frees=True)


def test_draining_continues_while_an_element_may_carry_the_cluster() -> None:
    parts = part("brno-sw1", removed=8, confirmed=7), part("brno-h1", removed=7, confirmed=9)
    assert next_transition(cluster(ClusterState.DRAINING, *parts, leaving_since=NOW)) is None


def test_an_element_without_the_cluster_must_also_confirm_the_removal() -> None:
    """A device that did not answer may nevertheless have executed the commands that add the cluster."""
    one = cluster(ClusterState.FAILING, part("brno-sw1", added=5, removed=6, confirmed=0), leaving_since=NOW)
    assert next_transition(one) is None


@pytest.mark.parametrize(
    ("state", "end"), [(ClusterState.DRAINING, ClusterState.RELEASED), (ClusterState.FAILING, ClusterState.FAILED)]
)
def test_the_drain_deadline_ends_a_cluster_and_quarantines_its_claims(state: ClusterState, end: ClusterState) -> None:
    one = cluster(state, part("brno-sw1", removed=8, trouble="cut off"), leaving_since=NOW - DRAIN)
    assert next_transition(one) == ClusterTransition(
        end,
        "its VLAN IDs were quarantined at 2026-01-01 12:00:00 UTC: switch brno-sw1 at brno had not confirmed (cut off)",
        quarantines=True,
    )


def test_a_late_confirmation_ends_the_quarantine() -> None:
    one = cluster(ClusterState.RELEASED, part("brno-sw1", removed=8, confirmed=8), quarantined=True)
    assert next_transition(one) == ClusterTransition(ClusterState.RELEASED, frees=True)


def test_a_network_waits_for_the_removal_of_its_members() -> None:
    gone = part("brno-sw1", removed=7, confirmed=7)
    owing = cluster(ClusterState.DRAINING, part("brno-h1", removed=9, confirmed=8))
    own = cluster(ClusterState.DRAINING, gone, leaving_since=NOW, members=(owing,))
    assert next_transition(own) is None
    assert next_transition(replace(own, members=())) == ClusterTransition(ClusterState.RELEASED, frees=True)
    assert next_transition(replace(own, leaving_since=NOW - DRAIN)) == ClusterTransition(
        ClusterState.RELEASED,
        "its VLAN IDs were quarantined at 2026-01-01 12:00:00 UTC: host brno-h1 at brno had not confirmed "
        "(its agent has never called SBF)",
        quarantines=True,
    )


def test_unconfirmed_members_keep_a_network_in_quarantine() -> None:
    own = cluster(ClusterState.RELEASED, part("brno-sw1", removed=7, confirmed=7), quarantined=True)
    late = cluster(ClusterState.RELEASED, part("brno-h1", removed=9, confirmed=8), quarantined=True)
    assert next_transition(replace(own, members=(late,))) is None
    assert next_transition(own) == ClusterTransition(ClusterState.RELEASED, frees=True)


def test_claims_stay_in_quarantine_until_confirmation() -> None:
    assert (
        next_transition(cluster(ClusterState.RELEASED, part("brno-sw1", removed=8, confirmed=7), quarantined=True))
        is None
    )


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_an_ended_cluster_without_claims_stays_ended(state: ClusterState) -> None:
    assert (
        next_transition(cluster(state, part("brno-sw1", removed=8, confirmed=8), lease_ends=NOW, deadline=NOW)) is None
    )


def test_a_removed_placement_does_not_prevent_active() -> None:
    parts = part("brno-sw1", removed=8, confirmed=7), part("brno-h1", confirmed=9)
    assert next_transition(cluster(ClusterState.CONFIGURING, *parts)) == ClusterTransition(ClusterState.ACTIVE)


PLACEMENTS = st.builds(
    PlacementStatus,
    element=st.sampled_from([Name(name) for name in ELEMENTS]),
    kind=st.just(ElementKind.SWITCH),
    site=st.just(Name("brno")),
    added=st.integers(1, 5),
    removed=st.none() | st.integers(6, 9),
    confirmed=st.integers(0, 9),
    reachable=st.booleans(),
)
CLUSTERS = st.builds(
    ClusterStatus,
    id=st.just("c1"),
    state=st.sampled_from(sorted(set(ClusterState) - {ClusterState.REQUESTED})),
    placements=st.lists(PLACEMENTS, max_size=4).map(tuple),
    deadline=st.sampled_from([NOW - DRAIN, NOW, NOW + DRAIN]),
    lease_ends=st.sampled_from([NOW - DRAIN, NOW, NOW + DRAIN]),
    leaving_since=st.sampled_from([NOW - DRAIN, NOW, None]),
    quarantined=st.booleans(),
)


@given(CLUSTERS)
def test_every_transition_is_in_the_table(one: ClusterStatus) -> None:
    found = next_transition(one)
    assert found is None or found.to is one.state or found.to in TRANSITIONS[one.state]


@given(CLUSTERS)
def test_claims_are_never_freed_while_an_element_may_carry_them(one: ClusterStatus) -> None:
    found = next_transition(one)
    if found is not None and found.frees:
        assert all(part.removed is not None and part.confirmed >= part.removed for part in one.placements)
        assert found.to in ENDED_STATES


@given(CLUSTERS)
def test_active_clusters_are_confirmed_everywhere(one: ClusterStatus) -> None:
    found = next_transition(one)
    if found is not None and found.to is ClusterState.ACTIVE:
        assert all(part.confirmed >= part.added for part in one.placements if part.removed is None)


@given(CLUSTERS)
def test_a_leaving_cluster_can_only_end(one: ClusterStatus) -> None:
    found = next_transition(one)
    if one.state in LEAVING_STATES and found is not None:
        assert found.to in ENDED_STATES


def test_the_reason_names_a_stale_agents_last_call() -> None:
    heard = part("brno-h1", last_seen=datetime(2026, 11, 20, 7, 12, 3, tzinfo=UTC))
    assert describe_unconfirmed(cluster(ClusterState.CONFIGURING, heard)) == (
        "host brno-h1 at brno has not confirmed (its agent last called SBF at 2026-11-20 07:12:03 UTC)"
    )
