"""Tests of ports that may still carry the VLAN of a cluster when the topology changes."""

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.poll_calls import counted_statements
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.domain.topology_change import TopologyChange
from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.store.elements.observed_state import record_failed_save, record_pending_save
from sbf_service.store.topology.topology_ports import OR_REMOVE, check_access_links_kept, list_lost_ports
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

ACCESS = SwitchCapabilities(access=True)


def with_links(**hosts: str) -> Topology:
    """Return a topology of three sites, with a third host at Brno. ``hosts`` maps hosts of Brno to ports of the switch.

    The links of Brno's hosts are access links.
    """
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"] += ["p3", "p4", "p5"]
    document["sites"][0]["hosts"].append({"name": "brno-h3", "ports": ["eth0"]})
    ports = {"h1": "p1", "h2": "p2", "h3": "p3"} | hosts
    links = [{"a": f"brno-{host}:eth0", "b": f"brno-sw1:{port}", "access": True} for host, port in ports.items()]
    document["links"] = [link for link in document["links"] if not link["a"].startswith("brno")] + links
    return Topology.model_validate(document)


def test_a_port_of_a_switch_with_unsaved_changes_stays(world: World) -> None:
    """The recorded observed state lacks a VLAN that a worker configured on the port before a cluster's path changed."""
    former = world.topology()
    document = former.model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"].append("p9")
    world.put_topology(Topology.model_validate(document))
    world.put("demo", spec("brno-h1"))
    with world.store.change() as unit:
        record_pending_save(unit, "brno-sw1")
    with pytest.raises(Conflict) as refused:
        world.put_topology(former)
    assert str(refused.value) == (
        "switch brno-sw1 has unsaved changes, so port brno-sw1:p9, which would vanish, may carry VLANs of clusters: "
        f"remove the port when the switch has saved the changes{OR_REMOVE}"
    )
    world.settle()
    world.put_topology(former)
    assert world.topology() == former


def test_the_removal_of_a_port_in_use_causes_one_error(world: World) -> None:
    """The port carries a VLAN, and its switch has unsaved changes.

    Only the VLAN causes an error, because the remedy of this error suffices.
    """
    former = world.topology()
    document = former.model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"].remove("p1")
    document["links"] = [link for link in document["links"] if link["b"] != "brno-sw1:p1"]
    document["sites"][0]["hosts"] = document["sites"][0]["hosts"][1:]
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.delete("demo")
    world.settle()
    with world.store.change() as unit:
        record_pending_save(unit, "brno-sw1")
        change = TopologyChange(former, Topology.model_validate(document))
        errors = list(list_lost_ports(unit, change, []))
    assert errors == ["VLAN 100 was last observed on port brno-sw1:p1, which would vanish: end the cluster first"]


def test_an_access_link_stays_while_its_vlan_may_remain(world: World) -> None:
    """Otherwise guests at the new end of the link could receive the frames of the VLAN."""
    world.switches.facts = ACCESS
    world.furnish(topology=with_links())
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    moved = with_links(h1="p4", h3="p1")
    for _ in ("running", "ending"):
        with pytest.raises(Conflict) as refused:
            world.put_topology(moved)
        assert str(refused.value) == (
            "VLAN 100 of cluster demo was last observed on port brno-sw1:p1, whose access link would change: end the "
            f"cluster if it still runs, and change the link when the switch has removed the VLAN{OR_REMOVE}"
        )
        world.delete("demo")
        world.settle()
    world.switches["brno-sw1"].cut_off = False
    world.clock.advance(61)
    world.settle()
    world.put_topology(moved)


def test_hosts_of_one_network_may_exchange_their_access_ports(world: World) -> None:
    world.switches.facts = ACCESS
    world.furnish(topology=with_links())
    world.put("demo", spec("brno-h1", "brno-h2"))
    world.settle()
    world.put_topology(moved := with_links(h1="p2", h2="p1"))
    assert world.topology().peers == moved.peers


def test_a_host_moved_to_another_switch_keeps_its_ending_cluster(world: World) -> None:
    """Switch ``brno-sw9`` is new, and never carried the ending cluster. The host still carries this cluster untagged.

    A third host has an access link to the former port of the host.
    """
    world.switches.facts = ACCESS
    world.furnish(topology=with_links())
    world.put("demo", spec("brno-h1", "brno-h2"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.delete("demo")
    world.settle()
    document = with_links(h1="p5", h3="p1").model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw9", "platform": "fake", "ports": ["p1", "up"]})
    document["links"] = [link for link in document["links"] if link["a"] != "brno-h1:eth0"]
    document["links"].append({"a": "brno-h1:eth0", "b": "brno-sw9:p1", "access": True})
    document["links"].append({"a": "brno-sw9:up", "b": "brno-sw1:p5"})
    world.put_topology(Topology.model_validate(document))
    dry = {"spec": spec("brno-h1").model_dump(mode="json")}
    assert ask(world, "PUT", "/v1/clusters/next?dry_run=true", dry).status_code == 409
    with pytest.raises(Conflict, match="next needs access port brno-sw9:p1, but cluster demo uses this port"):
        world.put("next", spec("brno-h1"))
    world.dead_hosts.clear()
    world.settle()
    assert world.put("next", spec("brno-h1")).created


def test_an_access_link_stays_while_changes_are_unsaved(world: World) -> None:
    world.switches.facts = ACCESS
    world.furnish(topology=with_links())
    world.put("demo", spec("brno-h1"))
    with world.store.change() as unit:
        record_pending_save(unit, "brno-sw1")
    with pytest.raises(Conflict) as refused:
        world.put_topology(with_links(h3="p4"))
    assert str(refused.value) == (
        "switch brno-sw1 has unsaved changes, so port brno-sw1:p3, whose access link would change, may carry VLANs of "
        f"clusters: change the link when the switch has saved the changes{OR_REMOVE}"
    )


def test_an_unreachable_switch_with_unsaved_changes_can_be_removed(world: World) -> None:
    world.switches.facts = ACCESS
    world.furnish(topology=with_links())
    world.put("demo", spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        record_pending_save(unit, "brno-sw1")
    world.switches["brno-sw1"].cut_off = True
    document = with_links().model_dump_json().replace("brno-sw1", "brno-sw2")
    world.delete("demo")
    world.settle()
    world.clock.advance(61)
    world.settle()
    with pytest.raises(Conflict, match=r"cluster demo .* needs brno-sw1, which would vanish"):
        world.put_topology(Topology.model_validate_json(document))
    assert ask(world, "POST", "/v1/sites/brno/quarantine/100/clean", {"reason": "scrapped"}).status_code == 200
    world.put_topology(Topology.model_validate_json(document))
    world.put("next", spec("brno-h1"))
    world.settle()
    assert world.switches["brno-sw2"].carried() == {"p1": "101"}


def with_many_hosts(first: int, moved: int = 0) -> Topology:
    """Return three sites. Brno has 60 ports and 30 hosts with access links: host n at port n.

    The first ``moved`` hosts are at port n + 30 instead. The switch lacks the ports below ``first``.
    """
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"] = [*(f"p{port}" for port in range(first, 61)), "uplink"]
    document["sites"][0]["hosts"] = [{"name": f"brno-h{host}", "ports": ["eth0"]} for host in range(1, 31)]
    document["links"] = [link for link in document["links"] if not link["a"].startswith("brno")] + [
        {"a": f"brno-h{host}:eth0", "b": f"brno-sw1:p{host + 30 * (host <= moved)}", "access": True}
        for host in range(1, 31)
    ]
    return Topology.model_validate(document)


def test_the_checks_of_many_ports_need_no_additional_statements(world: World) -> None:
    """The switch has unsaved changes. A change of 25 ports gets the first 20 errors."""
    world.switches.facts = ACCESS
    world.furnish(topology=with_many_hosts(1))
    world.put("demo", spec("brno-h30"))
    with world.store.change() as unit:
        record_pending_save(unit, "brno-sw1")
    counts = []
    for moved in (2, 25):
        with world.store.read() as unit, counted_statements(world.service) as counted:
            with pytest.raises(Conflict) as refused:
                check_access_links_kept(unit, TopologyChange(with_many_hosts(1), with_many_hosts(1, moved)))
            vanishing = TopologyChange(with_many_hosts(1, 25), with_many_hosts(moved + 1, 25))
            assert len(list(list_lost_ports(unit, vanishing, []))) == moved
        counts.append(len(counted))
    assert counts[0] == counts[1]
    assert len(str(refused.value).splitlines()) == 21
    assert str(refused.value).endswith("\nand 5 more")


def with_spare(kind: str, *ports: str) -> Topology:
    """Return three sites, and the element ``brno-x`` in the list ``kind`` of Brno, with a link to the site's switch."""
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"].append("p9")
    document["links"].append({"a": f"brno-x:{ports[0]}", "b": "brno-sw1:p9"})
    platform = {"platform": "fake"} if kind == "switches" else {}
    document["sites"][0][kind].append({"name": "brno-x", "ports": ports} | platform)
    return Topology.model_validate(document)


def test_a_host_inherits_no_pending_save_from_a_switch(world: World) -> None:
    world.put_topology(with_spare("switches", "p1"))
    with world.store.change() as unit:
        record_failed_save(unit, "brno-x")
    world.put_topology(with_spare("hosts", "eth0"))
    assert world.element("brno-x").unsaved_since is None


def test_a_host_with_a_pending_save_can_lose_a_port(world: World) -> None:
    """Earlier versions of SBF left the pending save in the row of the host."""
    world.put_topology(with_spare("hosts", "eth0", "eth1"))
    world.put("demo", spec("brno-h1"))
    with world.store.change() as unit:
        record_pending_save(unit, "brno-x")
    world.put_topology(with_spare("hosts", "eth0"))
    assert world.topology().element(Name("brno-x")).ports == ("eth0",)
