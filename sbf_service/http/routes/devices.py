"""Whether the service can configure the devices of a topology: asked when it is put."""

from collections.abc import Collection, Iterator

from sbf_service.domain.wanted import find_edge_transports
from sbf_service.reconcile.sessions import Platforms
from virtcloud.model.element import Device, Edge, kind_of
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport, TransportKind

BY_LOOPBACK = frozenset({TransportKind.VPLS, TransportKind.EVPN})


def check_device_support(topology: Topology, platforms: Platforms, credentials: Collection[str]) -> None:
    """Raise BadInput for the first device that cannot be configured as it is described."""
    for site in topology.sites:
        for switch in site.switches:
            can_access = platforms.of_switch(switch).facts.access
            for link in topology.links:
                if link.access and not can_access and switch.name in {end.element for end in link.ends}:
                    raise BadInput(f"access link {link.a} to {link.b}: SBF can have none on a {switch.platform} yet")
            _check_credential(switch, credentials)
        for edge in site.edges:
            can = platforms.of_edge(edge).facts.kinds
            _check_credential(edge, credentials)
            for fault in _faults(topology, edge, can):
                raise BadInput(f"edge {edge.name}: {fault}")


def _check_credential(device: Device, credentials: Collection[str]) -> None:
    if device.credential is not None and device.credential not in credentials:
        known = ", ".join(sorted(credentials)) or "none"
        raise BadInput(
            f"{kind_of(device)} {device.name}: expected a credential of the service's settings ({known}), "
            f"got {device.credential}"
        )


def _faults(topology: Topology, edge: Edge, can: frozenset[TransportKind]) -> Iterator[str]:
    for transport in find_edge_transports(topology, edge.name):
        if transport.kind not in can:
            able = ", ".join(sorted(can))
            yield f"expected a transport that {edge.platform} can do ({able}), got {_said(transport)}"
        if transport.kind in BY_LOOPBACK and edge.loopback is None:
            yield f"expected its loopback, by which the other edges of {_said(transport)} know it, got none"
        if transport.kind is TransportKind.QINQ and edge.core_port is None:
            yield f"expected its core_port, on which the service VLANs of {_said(transport)} are made, got none"


def _said(transport: Transport) -> str:
    return f"transport {transport.name} of kind {transport.kind}"
