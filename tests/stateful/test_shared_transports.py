"""Tests that no two networks share an Ethernet segment on a transport that separates networks only by their VLAN IDs.

Four sites are the fewest with networks that have several sites each and no site in common.
"""

from pathlib import Path
from random import Random

import pytest
from sbf_fakes.world import BACKBONE, FOUR, World, four_sites, make_world, spec

from sbf_service.store.cluster_lists import ClusterFilter, list_newest
from virtcloud.model.errors import Conflict, NotFound, NoVlanFree
from virtcloud.model.views import ClusterView

POOL = "100-103"
KEYS = "abcdef"
STEPS = 80


def request(world: World, random: Random) -> None:
    hosts = [f"{site}-h{random.choice((1, 2))}" for site in random.sample(FOUR, random.choice((1, 1, 2, 2, 3)))]
    joins = random.choice(KEYS) if random.random() < 0.4 else None
    vlan = 100 if joins is None and random.random() < 0.1 else None
    try:
        world.put(random.choice(KEYS), spec(hosts=hosts, joins=joins, vlan=vlan))
    except (Conflict, NotFound, NoVlanFree):
        return


def step(world: World, random: Random) -> None:
    action = random.choice(("request",) * 6 + ("end",) * 3 + ("settle", "fault", "time"))
    if action == "request":
        request(world, random)
    elif action == "end":
        key = random.choice(KEYS)
        if any(view.key == key for view in read_views(world)):
            world.delete(key)
    elif action == "settle":
        world.settle()
    elif action == "fault":
        device = world.switches[f"{random.choice(FOUR)}-sw1"]
        device.cut_off = not device.cut_off
    else:
        world.clock.advance(301)
        world.sweep()


def read_views(world: World) -> list[ClusterView]:
    with world.store.read() as unit:
        return list_newest(unit, ClusterFilter(ended=True), 1000)


def list_segments(world: World) -> list[tuple[str, int]]:
    """Return the transport and the VLAN ID of each network that has claims, and a transport."""
    networks = [view for view in read_views(world) if view.network is None and len(view.vlans) > 1]
    return [
        (view.joined.transport, vlan)
        for view in networks
        if view.joined is not None
        for vlan in set(view.vlans.values())
    ]


def list_carried(world: World) -> set[int]:
    """Return the VLAN IDs that the sites' uplinks pass to the transport."""
    return {int(vlan) for site in FOUR for vlan in world.switches[f"{site}-sw1"].ports.get("uplink", ())}


@pytest.mark.parametrize("transport", [BACKBONE, {"name": "core", "kind": "direct"}], ids=["qinq", "direct"])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_networks_share_a_vlan_id_on_a_transport(
    tmp_path: Path, seed: int, transport: dict[str, object]
) -> None:
    random, world = Random(seed), make_world(tmp_path)
    world.furnish(POOL, four_sites(transport))
    for _ in range(STEPS):
        step(world, random)
        segments = list_segments(world)
        assert len(segments) == len(set(segments))
        assert list_carried(world) <= {vlan for _, vlan in segments}
    world.close()
