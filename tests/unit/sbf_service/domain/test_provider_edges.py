import pytest
from pydantic import ValidationError
from support.sbf_fakes.world import spec

from sbf_service.domain.paths import LiveCluster, choose_transport, find_path_ports
from sbf_service.domain.wanted import compute_wanted
from virtcloud.model.edge import Circuit
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, VlanId

EVPN = {"name": "evpn", "kind": "evpn", "vnis": "10100-10199", "asn": 65000}
SHARED = {"name": "shared", "kind": "vpls", "vpn_id": 7, "asn": 65000}


def site(name: str, *transports: str) -> dict[str, object]:
    return {
        "name": name,
        "attachments": [{"transport": one, "port": f"{name}-pe1:ac"} for one in transports],
        "switches": [{"name": f"{name}-sw1", "platform": "fake", "ports": ["p1", "free", "uplink"]}],
        "edges": [{"name": f"{name}-pe1", "platform": "fake", "ports": ["ac"]}],
        "hosts": [{"name": f"{name}-h1", "ports": ["eth0"]}],
    }


def topology(*transports: dict[str, object], linked: bool = True) -> Topology:
    names = [str(one["name"]) for one in transports]
    cities = ("brno", "praha")
    links = [{"a": f"{city}-h1:eth0", "b": f"{city}-sw1:p1"} for city in cities]
    links += [{"a": f"{city}-sw1:uplink", "b": f"{city}-pe1:ac"} for city in cities if linked]
    sites = [site(city, *names) for city in cities]
    return Topology.model_validate({"name": "test", "transports": transports, "sites": sites, "links": links})


def live(transport: str, service: int | None, brno: int, praha: int) -> LiveCluster:
    numbers = {Name("brno"): VlanId(brno), Name("praha"): VlanId(praha)}
    asked = spec("brno-h1", "praha-h1")
    return LiveCluster("id", ClusterKey("a"), asked, numbers, Name(transport), service)


def test_a_path_leads_from_host_to_provider_edge() -> None:
    assert sorted(
        port for port in find_path_ports(topology(EVPN), spec("brno-h1", "praha-h1")) if port.startswith("brno")
    ) == [
        "brno-h1:eth0",
        "brno-pe1:ac",
        "brno-sw1:p1",
        "brno-sw1:uplink",
    ]


def test_a_cluster_of_one_site_needs_no_transport() -> None:
    assert choose_transport(topology(EVPN), [Name("brno-h1")]) is None
    assert sorted(find_path_ports(topology(EVPN), spec("brno-h1"))) == ["brno-h1:eth0", "brno-sw1:p1"]


def test_each_edge_joins_its_vlan_id_to_the_service() -> None:
    found = compute_wanted(Name("praha-pe1"), topology(EVPN), [live("evpn", 10100, brno=100, praha=200)])
    assert found.circuits == (Circuit(transport=Name("evpn"), port="ac", vlan=VlanId(200), service=10100),)


def test_a_shared_service_joins_every_circuit() -> None:
    found = compute_wanted(Name("brno-pe1"), topology(SHARED), [live("shared", None, brno=100, praha=100)])
    assert [(one.vlan, one.service) for one in found.circuits] == [(100, 7)]


def test_the_first_transport_by_preference_is_used() -> None:
    chosen = choose_transport(topology(SHARED, EVPN), [Name("brno-h1"), Name("praha-h1")])
    assert chosen is not None
    assert chosen.name == "shared"


def test_a_cluster_stays_on_its_transport() -> None:
    found = compute_wanted(Name("brno-pe1"), topology(SHARED, EVPN), [live("evpn", 10100, brno=100, praha=100)])
    assert [(one.transport, one.service) for one in found.circuits] == [("evpn", 10100)]


def test_a_transport_that_a_site_lost_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="site brno is not attached to transport evpn"):
        find_path_ports(topology(SHARED), spec("brno-h1", "praha-h1"), Name("evpn"))


def test_a_transport_of_provider_edges_is_refused_at_a_switch() -> None:
    made = topology(EVPN).model_dump(mode="json")
    made["sites"][0]["attachments"][0]["port"] = "brno-sw1:free"
    with pytest.raises(ValidationError, match=r"site brno: expected a port of one of its edges .*got brno-sw1:free"):
        Topology.model_validate(made)


def test_an_edge_port_without_a_switch_is_refused() -> None:
    with pytest.raises(ValidationError, match="port brno-pe1:ac: expected a link to a switch of brno, got none"):
        topology(EVPN, linked=False)
