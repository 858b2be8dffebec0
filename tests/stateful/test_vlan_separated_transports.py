"""Tests that no two networks share an Ethernet segment on a transport that separates networks only by VLAN IDs.

The tests use four sites: two networks with two sites each and no common site need at least four sites.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from simulation.planting import plant
from support.exploration import list_seeds
from support.sbf_fakes.world import BACKBONE, FOUR, World, four_sites, make_world, spec

from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.networks import networks
from sbf_service.store.vlans import allocation, transport_vlans
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import Conflict, NotFound, NoVlanFree
from virtcloud.model.views import ClusterView

POOL = "100-103"
KEYS = "abcdefgh"
STEPS = 80


def request(world: World, random: Random) -> None:
    """Request a new network at one to three sites, or a member of a network at one site."""
    views = read_views(world)
    key = random.choice(sorted(set(KEYS) - {view.key for view in views if view.vlans}) or KEYS)
    networks = [view.key for view in views if view.network is None and view.state in WANTED_STATES]
    joins = random.choice(networks) if networks and random.random() < 0.5 else None
    count = 1 if joins else random.choice((1, 1, 2, 2, 3))
    hosts = [f"{site}-h{random.choice((1, 2))}" for site in random.sample(FOUR, count)]
    vlan = 100 if joins is None and random.random() < 0.1 else None
    try:
        world.put(key, spec(hosts=hosts, joins=joins, vlan=vlan))
    except (Conflict, NotFound, NoVlanFree):
        return


def step(world: World, random: Random) -> None:
    action = random.choice(("request",) * 6 + ("end",) * 3 + ("settle",) * 3 + ("fault", "time"))
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
    """Return the transport and the VLAN ID of each network that has claims on a transport."""
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


def run(folder: Path, seed: int, transport: Mapping[str, object]) -> None:
    random, world = Random(seed), make_world(folder)
    try:
        world.furnish(POOL, four_sites(transport))
        for _ in range(STEPS):
            step(world, random)
            segments = list_segments(world)
            assert len(segments) == len(set(segments)), "a VLAN ID has two networks on the transport"
            assert list_carried(world) <= {vlan for _, vlan in segments}, "a VLAN ID has no network"
    finally:
        world.close()


def run_seeds(folder: Path, count: int) -> None:
    for seed in range(count):
        (of_seed := folder / str(seed)).mkdir()
        run(of_seed, seed, BACKBONE)


@pytest.mark.parametrize("transport", [BACKBONE, {"name": "core", "kind": "direct"}], ids=["qinq", "direct"])
@pytest.mark.parametrize("seed", list_seeds(4))
def test_no_two_networks_share_a_vlan_id_on_a_transport(
    tmp_path: Path, seed: int, transport: Mapping[str, object]
) -> None:
    run(tmp_path, seed, transport)


@pytest.mark.parametrize(
    "planted",
    [
        (transport_vlans, "return None if transport is None or transport.translates else transport", "return None"),
        (
            networks,
            "        check_not_taken(unit, transport, vlan, sees, subject, network.network.id, remedy)",
            "        pass",
        ),
    ],
    ids=["ignores the transport", "ignores the transport of a growing network"],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: tuple[ModuleType, str, str]
) -> None:
    module, old, new = planted
    plant(monkeypatch, module, old, new)
    if module is transport_vlans:
        monkeypatch.setattr(allocation, "find_vlan_separated", transport_vlans.find_vlan_separated)
    with pytest.raises(AssertionError, match="a VLAN ID has two networks"):
        run_seeds(tmp_path, 20)
