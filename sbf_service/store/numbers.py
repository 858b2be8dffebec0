"""The numbers that a cluster would get now: a VLAN at each site, and a service of its own where it needs one."""

from collections.abc import Mapping
from dataclasses import dataclass

from sbf_service.paths import sites_of, transport_of
from sbf_service.store.asked_number import Sees, sees_none, take_asked
from sbf_service.store.longest_unused import choose
from sbf_service.store.pools import Reserved
from sbf_service.store.services import free_service
from sbf_service.store.session import Unit
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId


@dataclass(frozen=True, slots=True)
class Numbers:
    """What joins a cluster's sites, its VLAN number at each of them, and its own service number."""

    transport: Transport | None
    vlans: Mapping[Name, VlanId]
    service: int | None

    @property
    def on(self) -> Name | None:
        """The transport's name."""
        return None if self.transport is None else self.transport.name


def choose_numbers(
    unit: Unit, topology: Topology, spec: ClusterSpec, reserved: Reserved, sees: Sees = sees_none
) -> Numbers:
    """Choose them; nothing is written. Raises NoSuchHost, Conflict, NoVlanFree, VlanNotInPool.

    ``sees`` says who holds a number that was asked for is known to whom.
    """
    transport = transport_of(topology, spec.all_hosts, spec.sites)
    sites = sites_of(topology, spec.all_hosts, spec.sites)
    translates = transport is not None and transport.translates
    if spec.vlan is None:
        vlans = choose(unit, sites, reserved, translates=translates)
    else:
        vlans = take_asked(unit, sites, spec.vlan, reserved, sees)
    return Numbers(transport, vlans, free_service(unit, transport))
