"""Tests of topology changes that run at the same time as calls to this and other replicas."""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any

import pytest
from sqlalchemy import event
from support.sbf_fakes.poll_calls import counted_statements
from support.sbf_fakes.world import World, spec

from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.large_documents import SHORT_TURN_S, Pauses
from sbf_service.store.clusters.cluster_records import ClusterReading, read_cluster_records
from sbf_service.store.clusters.live_clusters import read_live_clusters
from sbf_service.store.store import Store
from sbf_service.store.topology import current_topology
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.topology.topology import FormerTopology, change_topology, put_topology
from sbf_service.store.topology.topology_cache import TopologyCache
from sbf_service.store.topology.topology_documents import read_documents
from sbf_service.store.topology.topology_elements import ElementChanges, prepare_elements
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.allocation import find_excluded_vlans
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import replace_site_part
from virtcloud.model.values import Name
from virtcloud.model.views import PlacementProgress
from virtcloud.model.vlans import VlanSet


def return_topology(wanted: Topology, _former: Topology) -> Topology:
    return wanted


def with_open_filters(topology: Topology, name: str) -> Topology:
    part = site_part_of(topology, name)
    site = part.site.model_copy(update={"open_filters": True})
    return replace_site_part(topology, SitePart(site=site, links=part.links))


def without_last_host(topology: Topology, name: str) -> Topology:
    part = site_part_of(topology, name)
    site = part.site.model_copy(update={"hosts": part.site.hosts[:-1]})
    lost = part.site.hosts[-1].name
    links = tuple(link for link in part.links if lost not in {end.element for end in link.ends})
    return replace_site_part(topology, SitePart(site=site, links=links))


def store_change(store: Store, change: Callable[[Topology], Topology]) -> None:
    with store.change() as unit:
        put_topology(unit, change(read_topology(unit)))


def replace_topology(store: Store, change: Callable[[Topology], Topology]) -> None:
    """Replace the topology as :func:`store_change` does, but compute the effects before the transaction."""
    change_topology(store, lambda former: former.share_parts(change(former.require())), who="eva")


def read(store: Store) -> Topology:
    with store.read() as unit:
        return read_topology(unit)


def test_a_change_is_prepared_in_short_turns(world: World) -> None:
    """The thread that prepares the change holds Python's interpreter lock only for short turns.

    Turns of the default length would delay every concurrent call by up to 5 ms whenever the call needs the lock.
    """
    turns_s = []

    def make(former: FormerTopology) -> Topology:
        turns_s.append(sys.getswitchinterval())
        return former.share_parts(with_open_filters(former.require(), "brno"))

    change_topology(world.store, make, who="anna")
    assert turns_s == [pytest.approx(SHORT_TURN_S)]


@contextmanager
def recorded_pauses(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bool, bool]]]:
    """Record for each pause whether a transaction is open, and whether the cache is locked."""
    pauses: list[tuple[bool, bool]] = []
    opened: list[str] = []
    listeners = {
        "begin": lambda _connection: opened.append("transaction"),
        "commit": lambda _connection: opened.clear(),
        "rollback": lambda _connection: opened.clear(),
    }
    monkeypatch.setattr(Pauses, "pause", lambda _self: pauses.append((bool(opened), store._cache.parsing.locked())))
    for name, listener in listeners.items():
        event.listen(store.engine, name, listener)
    yield pauses
    for name, listener in listeners.items():
        event.remove(store.engine, name, listener)


@pytest.mark.parametrize("of", ["hosts", "switches"])
def test_a_change_pauses_only_outside_transactions(world: World, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """In a transaction, a pause would delay other writers, or make a reader's snapshot older."""
    world.put("demo", spec("brno-h1", "praha-h1"))
    wanted = with_wider_elements(read(world.store), of)
    with recorded_pauses(world.store, monkeypatch) as pauses:
        change_topology(world.store, lambda former: former.share_parts(wanted), who="eva")
    assert len(pauses) > len(wanted.sites)
    assert set(pauses) == {(False, False)}


def test_no_thread_pauses_while_others_wait_for_its_topology(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a replica parses another replica's topology, all other calls wait for a lock."""
    other = Store(world.store.engine)
    read(other)
    store_change(world.store, lambda topology: with_wider_elements(topology, "hosts"))
    with recorded_pauses(other, monkeypatch) as pauses:
        change_topology(other, lambda former: former.share_parts(with_open_hosts(former.require())), who="eva")
    assert set(pauses) == {(False, False)}


def test_stored_hosts_with_equal_keys_share_the_set_of_keys(world: World) -> None:
    other = replace(world.store, _cache=TopologyCache())
    hosts = read(other).hosts.values()
    assert len({id(host.model_fields_set) for host in hosts}) == 1 < len(hosts)


def test_both_readings_of_clusters_are_equal(world: World) -> None:
    """A change of the topology reads only some columns of clusters. The result must equal a full reading."""
    world.put("wide", spec("brno-h1", "praha-h1"))
    world.put("member", spec(hosts=["plzen-h1"], joins="wide"))
    world.put("local", spec("brno-h2", lease_s=3600))
    world.settle()
    with world.store.read() as unit:
        live = read_live_clusters(unit)
        everything = read_cluster_records(unit, None, ClusterReading()).clusters
        some = read_cluster_records(unit, [cluster.id for cluster in live], ClusterReading()).clusters
    assert len(live) == 3
    assert everything == some == live


def test_a_change_during_the_preparation_is_kept(world: World) -> None:
    versions = []

    def make(former: FormerTopology) -> Topology:
        versions.append(former.version)
        if len(versions) == 1:
            store_change(world.store, lambda topology: with_open_filters(topology, "brno"))
        return former.share_parts(with_open_filters(former.require(), "praha"))

    version = change_topology(world.store, make, who="eva")
    assert versions == [version - 2, version - 1]
    assert [site.open_filters for site in read(world.store).sites] == [True, True, False]


def test_a_cluster_created_during_the_preparation_is_protected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = read(world.store).sites[0].hosts[-1].name
    prepare = TopologyEffects.prepare

    def prepare_slowly(*arguments: Any) -> None:
        prepare(*arguments)
        world.put("demo", spec(lost))

    monkeypatch.setattr(TopologyEffects, "prepare", prepare_slowly)
    with pytest.raises(Conflict, match=f"cluster demo .* needs {lost}"):
        change_topology(
            world.store, lambda former: former.share_parts(without_last_host(former.require(), "brno")), who="eva"
        )


@pytest.mark.parametrize("changed", [("brno",), ("brno", "praha", "plzen")], ids=["one change", "three changes"])
def test_an_open_unit_of_work_reads_the_former_topology(world: World, changed: tuple[str, ...]) -> None:
    former = read(world.store)
    with world.store.read() as unit:
        read_topology_version(unit)
        for name in changed:
            store_change(world.store, partial(with_open_filters, name=name))
        assert read_topology(unit) == former
    assert read(world.store) != former


def test_calls_never_parse_a_topology_that_this_replica_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that begins between the commit and the update of the cache waits for the update."""
    add, read_new_version, parsed, began = TopologyCache.add, current_topology._read_new_version, [], Event()

    def read_after_commit(cache: TopologyCache, version: int, topology: Topology) -> None:
        if caller.ident is None:
            caller.start()
            assert began.wait(10)
            if not cache.committing.locked():
                caller.join()
        add(cache, version, topology)

    def begin(unit: Unit, version: int) -> Topology:
        began.set()
        return read_new_version(unit, version)

    def parse(*_arguments: object) -> Topology:
        parsed.append(1)
        return former

    caller, former = Thread(target=lambda: read(world.store)), world.topology()
    monkeypatch.setattr(current_topology, "_read_new_version", begin)
    monkeypatch.setattr(current_topology, "read_documents", parse)
    monkeypatch.setattr(TopologyCache, "add", read_after_commit)
    change_topology(world.store, lambda former: former.share_parts(with_open_hosts(former.require())), who="eva")
    caller.join()
    assert parsed == []


def test_a_commit_never_waits_for_a_thread_that_parses(world: World) -> None:
    """Otherwise, all writers would wait for this thread too."""
    change = partial(with_open_filters, name="brno")
    writer = Thread(target=store_change, args=(world.store, change), daemon=True)
    wanted = change(read(world.store))
    with world.store._cache.parsing:
        writer.start()
        writer.join(30)
        assert not writer.is_alive()
    assert read(world.store) == wanted


def test_a_reader_waits_briefly_for_a_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose answer is lost holds the lock until the connection to the database fails."""
    monkeypatch.setattr("sbf_service.store.topology.topology_cache.MAX_COMMIT_WAIT_S", 0)
    other, found = Store(world.store.engine), list[Topology]()
    reader = Thread(target=lambda: found.append(read(other)), daemon=True)
    with other._cache.committing:
        reader.start()
        reader.join(30)
        assert found == [read(world.store)]


def test_only_one_thread_parses_a_topology(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wait for a commit, all waiting calls would otherwise parse the same topology at the same time."""
    monkeypatch.setattr("sbf_service.store.topology.topology_cache.MAX_COMMIT_WAIT_S", 0)
    read_new_version, parsed = current_topology._read_new_version, list[bool]()
    other, start = Store(world.store.engine), Barrier(3, timeout=30)

    def begin(unit: Unit, version: int) -> Topology:
        start.wait()
        return read_new_version(unit, version)

    def parse(*arguments: Any) -> Topology:
        parsed.append(other._cache.parsing.locked())
        return read_documents(*arguments)

    monkeypatch.setattr(current_topology, "_read_new_version", begin)
    monkeypatch.setattr(current_topology, "read_documents", parse)
    with other._cache.committing, ThreadPoolExecutor(3) as threads:
        found = list(threads.map(read, [other] * 3))
    assert (found, parsed) == ([read(world.store)] * 3, [True])


def test_another_replica_reads_added_and_removed_sites(world: World) -> None:
    other = Store(world.store.engine)
    everything = read(other)
    document = everything.model_dump()
    fewer = Topology.model_validate(
        {**document, "sites": document["sites"][:2], "links": list(links_of(everything, 2))}
    )
    for topology in (fewer, everything):
        store_change(world.store, partial(return_topology, topology))
        assert read(other) == topology == read(Store(world.store.engine))


def links_of(topology: Topology, sites: int) -> list[dict[str, object]]:
    parts = (site_part_of(topology, site.name) for site in topology.sites[:sites])
    return [link.model_dump() for part in parts for link in part.links]


def test_another_order_of_the_sites_links_is_no_change(world: World) -> None:
    before = read(world.store)
    mixed = (*before.links[::2], *before.links[1::2])
    store_change(world.store, lambda topology: topology.model_copy(update={"links": mixed}))
    assert read(world.store) is before


def with_open_hosts(topology: Topology) -> Topology:
    sites = [
        site.model_copy(update={"hosts": tuple(host.model_copy(update={"open_filters": True}) for host in site.hosts)})
        for site in topology.sites
    ]
    return topology.model_copy(update={"sites": tuple(sites)})


def with_wider_hosts(topology: Topology) -> Topology:
    return with_wider_elements(topology, "hosts")


def with_wider_elements(topology: Topology, of: str) -> Topology:
    document = topology.model_dump(mode="json")
    for site in document["sites"]:
        for element in site[of]:
            element["ports"].append("eth9")
    return Topology.model_validate(document)


def with_other_uplinks(topology: Topology) -> Topology:
    document = topology.model_dump(mode="json")
    for site in document["sites"]:
        for host in site["hosts"]:
            host["ports"].append("eth9")
    for link in document["links"]:
        link["a"] = re.sub("(-h[0-9]):eth0$", r"\1:eth9", link["a"])
    return Topology.model_validate(document)


def with_narrow_hosts(topology: Topology) -> Topology:
    document = topology.model_dump(mode="json")
    for site in document["sites"]:
        for host in site["hosts"]:
            host["ports"].remove("eth9")
    return Topology.model_validate(document)


def test_hosts_admission_rules_reset_no_element(world: World) -> None:
    """A cluster's configuration does not depend on these rules, so such a change reads no cluster."""
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    before = {name: world.element(name) for name in world.topology().elements}
    with counted_statements(world.service) as statements:
        change_topology(world.store, lambda former: former.share_parts(with_open_hosts(former.require())), who="eva")
    assert all(host.open_filters for host in read(world.store).hosts.values())
    assert [one for one in statements if " clusters" in one or " elements" in one] == []
    assert {name: world.element(name) for name in before} == before
    world.sweep()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_hosts_with_other_uplinks_get_a_new_revision(world: World) -> None:
    """Only the host with a cluster does: the other host's wanted state is empty before and after the change."""
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    before = [world.element(name) for name in ("brno-h1", "brno-h2")]
    change_topology(world.store, lambda former: former.share_parts(with_other_uplinks(former.require())), who="eva")
    after = [world.element(name) for name in ("brno-h1", "brno-h2")]
    revision = before[0].wanted_revision + 1
    assert after == [before[0].model_copy(update={"wanted_revision": revision}), before[1]]
    world.sweep()
    assert world.view("demo").state is ClusterState.DEGRADED
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_ports_without_links_reset_no_element(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SBF also computes no wanted state, and reads no clusters and no rows of elements."""
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    before = {name: world.element(name) for name in world.topology().elements}
    monkeypatch.delattr("sbf_service.domain.topology_effects.compute_wanted")
    with counted_statements(world.service) as statements:
        for change in (with_wider_hosts, with_narrow_hosts):
            replace_topology(world.store, change)
    assert {port for host in read(world.store).hosts.values() for port in host.ports} == {"eth0"}
    assert [one for one in statements if " clusters" in one or " elements" in one] == []
    assert {name: world.element(name) for name in before} == before


def test_the_elements_of_changed_sites_are_read_by_site(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With at most one parameter in a statement, SBF sends one statement for each site, not for each element."""
    monkeypatch.setattr("sbf_service.store.tables.columns.MAX_PARAMETERS", 1)
    with counted_statements(world.service) as statements:
        change_topology(world.store, lambda former: former.share_parts(with_other_uplinks(former.require())), who="eva")
    reading = [
        one
        for one in statements
        if one.startswith("SELECT elements.name, elements.site, elements.kind, elements.present")
    ]
    assert len(reading) == len(read(world.store).sites) == 3


def test_elements_are_compared_before_the_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = []

    def record_comparison(unit: Unit, change: TopologyChange) -> ElementChanges:
        locks.append(unit.connection.get_execution_options().get("virtcloud_write", False))
        return prepare_elements(unit, change)

    monkeypatch.setattr("sbf_service.store.topology.topology.prepare_elements", record_comparison)
    change_topology(world.store, lambda former: former.share_parts(with_open_hosts(former.require())), who="eva")
    assert locks == [False]


class FleetingVlans(dict[tuple[int | None, Name], VlanSet]):
    """A cache that loses each value at once, as if another thread had removed it."""

    def __setitem__(self, key: tuple[int | None, Name], vlans: VlanSet) -> None:
        """Store nothing."""


def test_reserved_vlans_are_found_while_versions_leave_the_cache(world: World) -> None:
    with world.store.read() as unit:
        site = read_topology(unit).sites[0]
        late = replace(unit, cache=TopologyCache(excluded=FleetingVlans()))
        assert 7 in find_excluded_vlans(late, site, lambda _device: VlanSet({7}))


def with_moved_host(topology: Topology) -> Topology:
    document = topology.model_dump(mode="json")
    first, last = document["sites"][0], document["sites"][-1]
    host = first["hosts"].pop(0)
    switch = last["switches"][0]
    switch["ports"].append("moved")
    last["hosts"].append(host)
    prefix = f"{host['name']}:"
    links = [link for link in document["links"] if not link["a"].startswith(prefix) | link["b"].startswith(prefix)]
    new = {"a": prefix + host["ports"][0], "b": f"{switch['name']}:moved"}
    return Topology.model_validate({**document, "links": [*links, new]})


def test_a_moved_host_of_a_cluster_is_a_conflict(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    with pytest.raises(Conflict, match="change its kind or site"):
        change_topology(world.store, lambda former: former.share_parts(with_moved_host(former.require())), who="eva")


def with_two_leaf_switches(topology: Topology, port_of_h4: str) -> Topology:
    document = topology.model_dump(mode="json")
    brno = document["sites"][0]
    ports = ["p1", "p2", "p3", "uplink"]
    brno["switches"] = [{"name": f"brno-sw{n}", "platform": "fake", "ports": ports} for n in (1, 2, 3)]
    brno["hosts"] = [{"name": f"brno-h{n}", "ports": ["eth0"]} for n in (1, 2, 3, 4)]
    cables = {"brno-sw2:uplink": "brno-sw1:p1", "brno-sw3:uplink": "brno-sw1:p2", "brno-h1:eth0": "brno-sw2:p1"}
    cables |= {"brno-h2:eth0": "brno-sw3:p1", "brno-h3:eth0": "brno-sw2:p2", "brno-h4:eth0": port_of_h4}
    links = [link for link in document["links"] if not link["a"].startswith("brno")]
    return Topology.model_validate({**document, "links": [*links, *({"a": a, "b": b} for a, b in cables.items())]})


def test_a_member_leaves_a_switch_that_its_network_needs(world: World) -> None:
    """The wanted state of the switch stays the same, but the member's placement there needs a later revision."""
    world.put_topology(with_two_leaf_switches(world.topology(), "brno-sw3:p2"))
    world.put("network", spec("brno-h1", "brno-h2"))
    world.put("member", spec(hosts=["brno-h3", "brno-h4"], joins="network"))
    world.settle()
    world.put_topology(with_two_leaf_switches(world.topology(), "brno-sw2:p3"))
    world.settle()
    (left,) = (view for view in world.view("member").placements if view.element == "brno-sw1")
    assert left.progress is PlacementProgress.REMOVED
    assert world.view("member").state is world.view("network").state is ClusterState.ACTIVE
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "p2": "100"}
