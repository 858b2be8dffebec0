"""Tests that the indexed query and the pure allocation rule choose the same VLAN IDs."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import combinations
from random import Random

import pytest
from sqlalchemy import select, update
from support.sbf_fakes.world import STARTED, World, spec

from sbf_service.domain.allocation import allocate_vlan_ids
from sbf_service.store.tables.vlan_tables import FreeVlanRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.allocation import ReservedVlans, allocate_longest_unused, read_site_pools
from sbf_service.store.vlans.claims import NEVER_USED
from sbf_service.store.vlans.transport_vlans import read_transport_vlans
from virtcloud.model.element import Device
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.vlans import VlanSet

SITES = ("brno", "praha", "plzen")
CORE = Transport(name="core", kind="qinq", s_tag=2000)
EVPN = Transport(name="evpn", kind="evpn", vnis="10100-10199", asn=65000)
LARGE_POOLS = ("2-1500", "1400-3900", "2-3900", "1000-1019", "1490-1509")
POOLS = ("100-139", "120-159", "100-119", "150-159", "100-101", "")


def randomise_pools(world: World, random: Random) -> None:
    for site in SITES:
        world.put_pool(site, random.choice(POOLS))
    for number in range(random.randint(0, 12)):
        try:
            world.put(f"c{number}", spec(*random.sample(["brno-h1", "praha-h1", "plzen-h1"], random.randint(1, 3))))
        except NoVlanFree:
            continue
    with world.store.change() as unit:
        for row in unit.session.query(FreeVlanRow):
            was_used = random.random() < 0.9
            row.since = STARTED - timedelta(days=random.randint(1, 9)) if was_used else NEVER_USED


def allocate_by_query(unit: Unit, sites: list[Site], reserved: ReservedVlans, transport: Transport | None) -> object:
    try:
        return allocate_longest_unused(unit, sites, reserved, transport)
    except NoVlanFree as error:
        return str(error)


def allocate_by_rule(unit: Unit, sites: list[Site], reserved: ReservedVlans, transport: Transport | None) -> object:
    translates, on_transport = transport is EVPN, read_transport_vlans(unit, transport)
    try:
        return allocate_vlan_ids(
            read_site_pools(unit, sites, reserved), translates=translates, on_transport=on_transport
        )
    except NoVlanFree as error:
        return str(error)


@pytest.mark.parametrize("seed", range(5))
def test_the_query_finds_the_vlan_id_of_the_rule(world: World, seed: int) -> None:
    random = Random(seed)
    excluded = VlanSet(range(100, 100 + random.choice([0, 0, 5, 18])))

    def reserved(_device: Device) -> VlanSet:
        return excluded

    randomise_pools(world, random)
    assert_query_equals_rule(world, reserved)


def assert_query_equals_rule(world: World, reserved: ReservedVlans) -> None:
    with world.store.read() as unit:
        all_sites = world.topology().sites
        for sites in (list(group) for count in (1, 2, 3) for group in combinations(all_sites, count)):
            for transport in (None, CORE, EVPN):
                wanted = allocate_by_rule(unit, sites, reserved, transport)
                assert allocate_by_query(unit, sites, reserved, transport) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_a_vlan_id_far_down_the_index_is_found(world: World, seed: int) -> None:
    """Most VLAN IDs that one site released long ago were released recently at another site.

    So the right VLAN ID is not among the first rows that the query reads.
    """
    random = Random(seed)
    for site in SITES:
        world.put_pool(site, random.choice(LARGE_POOLS))
    with world.store.change() as unit:
        unit.session.execute(update(FreeVlanRow), list(random_release_times(unit, random)))
    assert_query_equals_rule(world, lambda _device: VlanSet())


def random_release_times(unit: Unit, random: Random) -> Iterator[dict[str, object]]:
    """Yield, for each free VLAN ID, an update that sets a random release time.

    For a VLAN ID in the pools of several sites, at most one of these sites has a recent release time.
    """
    free = unit.connection.execute(select(FreeVlanRow.site, FreeVlanRow.vlan)).all()
    sites = Counter(vlan for _, vlan in free)
    recently_used_at = {vlan: random.choice(SITES) for vlan, count in sites.items() if count > 1}
    longest_days = {site: random.choice((20, 400, 8000)) for site in SITES}
    for site, vlan in free:
        days = (
            random.randint(0, 9) if recently_used_at.get(vlan) == site else random.randint(10, 10 + longest_days[site])
        )
        yield {"site": site, "vlan": vlan, "since": STARTED - timedelta(days=days)}


def test_each_pool_vlan_id_is_free_or_claimed(world: World) -> None:
    world.put("a", spec("brno-h1", "praha-h1"))
    world.put("b", spec("brno-h1"))
    world.settle()
    world.delete("a")
    world.settle()
    world.put_pool("brno", "100-119,150")
    with world.store.read() as unit:
        free = [row.vlan for row in unit.session.query(FreeVlanRow).where(FreeVlanRow.site == "brno")]
    assert sorted(free) == [100, *range(102, 120), 150]
    assert str(world.site("brno").claimed) == "101"


def test_a_returning_vlan_id_counts_as_never_used(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.settle()
    world.delete("a")
    world.settle()
    assert world.put("b", spec("brno-h1")).view.vlans == {"brno": 101}
    world.put_pool("brno", "101-139")
    world.put_pool("brno", "100-139")
    assert world.put("c", spec("brno-h1")).view.vlans == {"brno": 100}
