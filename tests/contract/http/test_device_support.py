"""Tests of the errors for a topology with devices that SBF cannot configure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, three_edges

from sbf_service.drivers.contract import EdgeCapabilities
from sbf_service.drivers.registry import find_edge_platform, find_switch_platform
from sbf_service.http.routes.topology import check_device_support
from sbf_service.reconcile.sessions import Platforms
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.transport import TransportKind

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    yield installation
    installation.close()


def put(world: World, change: Change, *transports: Mapping[str, object]) -> tuple[int, str, str]:
    document = three_edges(*transports).model_dump(mode="json")
    change(document["sites"][0]["edges"][0])
    return problem(ask(world, "PUT", "/v1/topology", document))


def test_supported_edges_are_accepted(world: World) -> None:
    answer = ask(world, "PUT", "/v1/topology", three_edges().model_dump(mode="json"))
    assert answer.status_code == 200


def test_an_edge_without_support_for_the_transport_is_refused(world: World) -> None:
    world.edges.facts = EdgeCapabilities(kinds=frozenset({TransportKind.VPLS, TransportKind.QINQ}))
    assert put(world, lambda _edge: None) == (
        422,
        "bad-input",
        "edge brno-pe1: expected a transport that fake supports (qinq, vpls), got transport evpn of kind evpn",
    )


def test_an_edge_without_loopback_is_refused(world: World) -> None:
    assert put(world, lambda edge: edge.update(loopback=None))[2] == (
        "edge brno-pe1: expected the loopback that the other edges of transport evpn of kind evpn connect to, got none"
    )


def test_an_edge_without_a_port_for_service_vlans_is_refused(world: World) -> None:
    qinq = {"name": "qinq", "kind": "qinq", "s_tags": "3000-3009"}
    assert put(world, lambda edge: edge.update(core_port=None), qinq)[2] == (
        "edge brno-pe1: expected the core_port that carries the service VLANs of transport qinq of kind qinq, got none"
    )


VPLS = {"name": "vpls", "kind": "vpls", "vpn_ids": "3005-3999", "asn": 65000}
QINQ = {"name": "qinq", "kind": "qinq", "s_tags": "3000-3009"}


def test_transports_of_an_edge_with_common_service_ids_are_refused(world: World) -> None:
    assert put(world, lambda _edge: None, VPLS, QINQ)[2] == (
        "edge brno-pe1: expected different service IDs in transports vpls and qinq, because services of fake are named "
        "after their IDs only, got 3005-3009 in both: change the range of one transport"
    )


def test_common_service_ids_are_accepted_on_edges_that_separate_kinds(world: World) -> None:
    world.edges.facts = replace(world.edges.facts, services_by_kind=True)
    document = three_edges(VPLS, QINQ).model_dump(mode="json")
    assert ask(world, "PUT", "/v1/topology", document).status_code == 200


def test_a_stored_topology_with_common_service_ids_remains_readable(world: World) -> None:
    """Earlier versions of SBF accepted such a topology."""
    world.put_topology(three_edges(VPLS, QINQ))
    assert ask(world, "GET", "/v1/topology").status_code == 200


def test_an_edge_with_an_unknown_credential_is_refused(world: World) -> None:
    assert put(world, lambda edge: edge.update(credential="secret"))[2] == (
        "edge brno-pe1: expected a credential of the service's settings (none), got secret"
    )


@pytest.mark.parametrize("name", ["brno-sw1", "brno-pe1"])
def test_a_device_without_an_address_is_refused(name: str) -> None:
    document = three_edges().model_dump(mode="json")
    for device in [one for site in document["sites"] for one in (*site["switches"], *site["edges"])]:
        kind = "linux_edge" if "loopback" in device else "arista_eos"
        device.update(platform=kind, address=None if device["name"] == name else "192.0.2.10")
    topology = Topology.model_validate(document)
    message = f"{name}: expected the key 'address' with the address to which SBF connects, got none"
    with pytest.raises(BadInput, match=message):
        check_device_support(topology, topology.sites, Platforms(find_switch_platform, find_edge_platform), ())


def test_an_unknown_edge_platform_is_refused_with_the_known_ones() -> None:
    edge = three_edges().sites[0].edges[0]
    with pytest.raises(BadInput, match=r"edge brno-pe1: expected a known platform \(.*linux_edge.*\), got fake"):
        find_edge_platform(edge)
