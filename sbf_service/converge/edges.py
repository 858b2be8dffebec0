"""Provider edges, as a kind of device."""

from dataclasses import replace

from sbf_service.converge.edge_verdict import has_drifted, refuse_foreign, refuse_leftover, refuse_outside
from sbf_service.converge.kind import Kind
from sbf_service.drivers.edge import Backbone, ManagedEdge
from sbf_service.edges import peers_of
from sbf_service.store.backbones import transports_on
from sbf_service.store.created_vlans import created_on
from sbf_service.store.pools import managed_vlans
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from virtcloud.model.edge import EdgeCarried, EdgeDifference, EdgeWanted, blocked_circuits, edge_difference
from virtcloud.model.element import Device, ElementKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet


def _managed(unit: Unit, device: Device, site: Name, _wanted: EdgeWanted) -> ManagedEdge:
    transports = transports_on(unit, read_topology(unit), device.name)
    return ManagedEdge(device.ports, managed_vlans(unit, site), transports, created_on(unit, device.name))


def _owning(managed: ManagedEdge, difference: EdgeDifference) -> ManagedEdge:
    return replace(managed, created=managed.created | difference.made)


def _owned(managed: ManagedEdge, wanted: EdgeWanted, carried: EdgeCarried) -> VlanSet:
    return VlanSet(one.vlan for one in carried.circuits) | (managed.created & wanted.vlans)


def _backbone(unit: Unit, name: Name) -> Backbone:
    topology = read_topology(unit)
    transports = transports_on(unit, topology, name)
    return Backbone(transports, peers_of(topology, name, transports))


EDGES: Kind[EdgeWanted, ManagedEdge, EdgeCarried, EdgeDifference] = Kind(
    ElementKind.EDGE,
    EdgeWanted,
    edge_difference,
    judge=lambda _managed, carried: carried,
    owning=_owning,
    owned=_owned,
    blocked=blocked_circuits,
    refuse_outside=refuse_outside,
    refuse_in_use=lambda _name, _managed, _carried, _difference: None,
    refuse_foreign=refuse_foreign,
    refuse_leftover=refuse_leftover,
    has_drifted=lambda kept, carried, behind: has_drifted(kept, carried, behind=behind),
    managed=_managed,
    backbone=_backbone,
    announced=lambda _unit, _name, _managed, _difference: None,
    settled=lambda _unit, _name, _managed, _carried: None,
)
