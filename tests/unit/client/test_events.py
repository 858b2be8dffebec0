from datetime import timedelta

from support.fake_machine.clusters import view

from virtcloud.client.events import find_events
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView

SPEC = ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h1"]})
CONFIGURING, ACTIVE = (view("demo", SPEC, state) for state in (ClusterState.CONFIGURING, ClusterState.ACTIVE))


def lines(before: ClusterView | None, after: ClusterView) -> list[str]:
    return [str(event) for event in find_events(before, after)]


def test_the_first_events_are_the_present_state_and_progress() -> None:
    assert lines(None, CONFIGURING) == ["demo: configuring", "demo, brno-sw: adding", "demo, brno-h1: adding"]


def test_an_unchanged_view_has_no_events() -> None:
    assert lines(ACTIVE, ACTIVE) == []


def test_each_changed_value_is_an_event() -> None:
    assert lines(CONFIGURING, ACTIVE) == ["demo: active", "demo, brno-sw: confirmed", "demo, brno-h1: confirmed"]
    later = ACTIVE.model_copy(update={"lease_ends": ACTIVE.lease_ends + timedelta(hours=1), "vlans": {"brno": 100}})
    assert lines(ACTIVE, later) == ["demo: VLAN 100 at brno", "demo: lease ends 2026-07-01 13:00:00 UTC"]


def test_a_reason_and_an_unreachable_element_are_events() -> None:
    part = ACTIVE.placements[0].model_copy(update={"reachable": False, "trouble": "no answer"})
    degraded = ACTIVE.model_copy(
        update={"state": ClusterState.DEGRADED, "reason": "brno-sw", "placements": (part, *ACTIVE.placements[1:])}
    )
    assert lines(ACTIVE, degraded) == ["demo: degraded: brno-sw", "demo, brno-sw: confirmed, unreachable: no answer"]


def test_an_event_has_the_former_value() -> None:
    (state, *_) = find_events(CONFIGURING, ACTIVE)
    assert (state.before, state.after, state.element) == ("configuring", "active", None)
