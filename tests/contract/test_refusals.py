"""What a host's refusal does to clusters that are not being set up: nothing."""

from sbf_fakes.world import World, spec

from sbf_service.store.refusals import fail_refused
from virtcloud.model.cluster import State


def test_an_active_cluster_is_not_ended_by_a_refusal(world: World) -> None:
    made = world.put("a", spec("brno-h1")).view
    world.settle()
    assert world.view("a").state is State.ACTIVE
    with world.store.change(who="brno-h1") as unit:
        fail_refused(unit, "brno-h1", {made.id: "image x not found"}, world.service.settings.timing.drain)
    assert world.view("a").state is State.ACTIVE
