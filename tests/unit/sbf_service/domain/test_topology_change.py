from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
from support.sbf_fakes.world import spec, three_edges, three_sites

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.wanted import compute_wanted
from virtcloud.model.element import Host
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.topology_parts import has_equal_paths, share_parts
from virtcloud.model.values import ClusterKey, VlanId
from virtcloud.model.yield_points import pausing_with


def changed(change: Callable[[dict[str, Any]], object], before: Topology | None = None) -> TopologyChange:
    former = before or three_sites()
    document = former.model_dump(mode="json")
    change(document)
    return TopologyChange(former, Topology.model_validate(document))


def add_host(document: dict[str, Any]) -> None:
    site = document["sites"][1]
    site["switches"][0]["ports"].append("p3")
    site["hosts"].append({"name": "praha-h3", "ports": ["eth0"]})
    document["links"].append({"a": "praha-h3:eth0", "b": "praha-sw1:p3"})


def test_an_equal_topology_concerns_no_site() -> None:
    assert changed(lambda _document: None).sites == frozenset()


def test_a_new_host_concerns_its_site_only() -> None:
    found = changed(add_host)
    assert found.sites == {"praha"}
    assert found.elements == {"praha-sw1", "praha-h1", "praha-h2", "praha-h3"}
    assert found.common_elements == {"praha-sw1", "praha-h1", "praha-h2"}


def test_a_changed_link_concerns_its_site() -> None:
    found = changed(lambda document: document["links"][0].update(latency_ms=1))
    assert found.sites == {"brno"}


def test_a_changed_transport_concerns_every_site() -> None:
    found = changed(lambda document: document["transports"][0].update(s_tag=2001))
    assert found.sites == {"brno", "praha", "plzen"}


def test_a_changed_loopback_concerns_all_sites_with_edges() -> None:
    found = changed(lambda document: document["sites"][0]["edges"][0].update(loopback="192.0.2.99"), three_edges())
    assert found.sites == {"brno", "praha", "plzen"}


def test_a_vanished_host_is_lost() -> None:
    def remove_host(document: dict[str, Any]) -> None:
        document["sites"][0]["hosts"].pop(0)
        document["links"] = [link for link in document["links"] if not link["a"].startswith("brno-h1:")]

    found = changed(remove_host)
    assert (set(found.sites), set(found.lost_elements), set(found.lost_ports)) == ({"brno"}, {"brno-h1"}, set())


def test_a_vanished_port_is_lost() -> None:
    def remove_port(document: dict[str, Any]) -> None:
        document["sites"][0]["switches"][0]["ports"].remove("p1")
        document["sites"][0]["hosts"].pop(0)
        document["links"] = [link for link in document["links"] if not link["a"].startswith("brno-h1:")]

    assert changed(remove_port).lost_ports == {"brno-sw1:p1"}


def test_a_host_that_moves_to_another_site_is_lost() -> None:
    def move_host(document: dict[str, Any]) -> None:
        document["sites"][1]["hosts"].append(document["sites"][0]["hosts"].pop(0))
        document["sites"][1]["switches"][0]["ports"].append("p3")
        document["links"][0]["b"] = "praha-sw1:p3"

    found = changed(move_host)
    assert (set(found.sites), set(found.lost_elements)) == ({"brno", "praha"}, {"brno-h1"})


def test_equal_paths_change_no_wanted_state() -> None:
    """Add each new field of hosts and sites to this test.

    If the field affects paths or devices, also add it to `_has_equal_site_wiring` or `_has_equal_uplinks`.
    """

    def change_values(document: dict[str, Any]) -> None:
        for site in document["sites"]:
            site |= {"images": ["alpine"], "open_filters": True}
            for host in site["hosts"]:
                host |= {"hypervisors": ["qemu"], "images": ["alpine"], "open_filters": False}
                host |= {"ports": ["eth9", *host["ports"]], "aggregates": {"eth9": ["eth7", "eth8"]}}

    found = changed(change_values)
    shared = share_parts(found.topology, found.former)
    assert has_equal_paths(found.former, shared)
    wiring = {"name", "ports", "attachments", "switches", "edges", "gateways", "hosts"}
    assert Host.model_fields.keys() - wiring == {"aggregates", "hypervisors", "admits", "images", "open_filters"}
    assert Site.model_fields.keys() - wiring == {"admits", "images", "destinations", "open_filters"}
    vlans = {site.name: VlanId(100) for site in shared.sites}
    live = [LiveCluster("a", ClusterKey("a"), spec("brno-h1", "praha-h1"), vlans)]
    for name in shared.elements:
        assert compute_wanted(name, found.former, live) == compute_wanted(name, shared, live)


def link_another_port(document: dict[str, Any]) -> None:
    document["sites"][0]["hosts"][0]["ports"] = ["eth9"]
    document["links"][0]["a"] = "brno-h1:eth9"


def test_hosts_with_other_ports_do_not_count_as_changed() -> None:
    """The clusters' paths determine a host's wanted state."""
    assert changed(link_another_port).changed_elements == set()


def test_hosts_at_another_site_count_as_changed() -> None:
    def move_host(document: dict[str, Any]) -> None:
        document["sites"][1]["hosts"].append(document["sites"][0]["hosts"].pop(0))
        document["sites"][1]["switches"][0]["ports"].append("p9")
        document["links"][0]["b"] = "praha-sw1:p9"

    assert changed(move_host).changed_elements == {"brno-h1", "praha-sw1"}


def test_links_within_a_site_are_compared_by_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hashes of all links of a large topology would take a second."""
    found = shared(changed(link_another_port))
    monkeypatch.setattr(Link, "__hash__", None)
    assert found.sites == {"brno"}


def test_ports_without_links_keep_all_paths() -> None:
    assert shared(changed(lambda document: document["sites"][0]["hosts"][0].update(ports=["eth9", "eth0"]))).keeps_paths


def test_other_linked_ports_change_paths() -> None:
    assert not shared(changed(link_another_port)).keeps_paths


def test_linked_ports_in_another_order_change_paths() -> None:
    def add_link(document: dict[str, Any]) -> None:
        document["sites"][0]["switches"][0]["ports"].append("p9")
        document["sites"][0]["hosts"][0]["ports"] = ["eth0", "eth9"]
        document["links"].append({"a": "brno-h1:eth9", "b": "brno-sw1:p9"})

    def swap_ports(document: dict[str, Any]) -> None:
        document["sites"][0]["hosts"][0]["ports"] = ["eth9", "eth0"]

    assert not shared(changed(swap_ports, changed(add_link).topology)).keeps_paths


def test_a_topology_with_equal_paths_takes_over_computed_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    found = changed(lambda document: document["sites"][0]["hosts"][0].update(ports=["eth9", "eth0"]))
    found.former.computed["path"] = "ports"
    after = shared(found)
    assert after.topology.computed == {"path": "ports"}
    assert after.topology.computed is found.former.computed
    monkeypatch.delattr("virtcloud.model.topology_parts._has_equal_site_wiring")
    assert after.keeps_paths  # without another comparison of all hosts


def test_no_comparison_waits_for_a_thread_that_pauses() -> None:
    """A dry run or a transaction can compare two topologies while another thread prepares a change."""
    pausing, resumed = Event(), Event()

    def pause() -> None:
        pausing.set()
        resumed.wait(60)

    def compare() -> None:
        with pausing_with(pause):
            _ = changed(add_host).sites

    thread = Thread(target=compare)
    other = Thread(target=lambda: changed(add_host).sites, daemon=True)
    thread.start()
    assert pausing.wait(10)
    other.start()
    other.join(10)
    is_waiting = other.is_alive()
    resumed.set()
    thread.join(10)
    assert not is_waiting


def shared(change: TopologyChange) -> TopologyChange:
    return TopologyChange(change.former, share_parts(change.topology, change.former))
