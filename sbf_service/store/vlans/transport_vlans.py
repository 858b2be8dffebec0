"""The VLAN IDs in use on transports that separate networks only by their VLAN IDs (decision 96).

On such a VLAN-separated transport, each VLAN ID is one Ethernet segment: all sites with the VLAN ID exchange frames.
Therefore, at most one network on the transport can have a VLAN ID, even without a common site. With a service for each
network, only networks with a common site need different VLAN IDs.

Each claim contains its network's transport, for one look-up by index.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, func, select, update
from sqlalchemy.orm import QueryableAttribute

from sbf_service.domain.allocation import TransportVlans
from sbf_service.domain.network_conflicts import join_remedies
from sbf_service.log import get_log
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.vlan_tables import ClaimRow, ServiceClaimRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

_ON_TRANSPORT = ClaimRow.transport == bindparam("transport", type_=NAME_TYPE)
_READ_VLANS = select(ClaimRow.vlan).where(_ON_TRANSPORT).distinct()
_FIND_CLAIM = (
    select(ClaimRow.cluster_id, ClaimRow.site)
    .where(
        _ON_TRANSPORT, ClaimRow.vlan == bindparam("vlan"), ClaimRow.cluster_id != bindparam("except", type_=NAME_TYPE)
    )
    .order_by(ClaimRow.site)
    .limit(1)
)
_CLAIMS = Base.metadata.tables[ClaimRow.__tablename__]
_SET_TRANSPORT = (
    update(_CLAIMS)
    .where(_CLAIMS.c.cluster_id == bindparam("network", type_=NAME_TYPE))
    .values(transport=bindparam("new_transport", type_=NAME_TYPE))
)
_CLUSTERS = Base.metadata.tables[ClusterRow.__tablename__]
_OF_NETWORK = select(_CLUSTERS.c.transport).where(_CLUSTERS.c.id == _CLAIMS.c.cluster_id)
_REPAIR = (
    update(_CLAIMS)
    .where(_CLAIMS.c.transport.is_(None), _OF_NETWORK.where(_CLUSTERS.c.transport.is_not(None)).exists())
    .values(transport=_OF_NETWORK.scalar_subquery())
)
SHOWN_CLUSTERS: Final = 10
_HAS_SERVICE = exists().where(ServiceClaimRow.cluster_id == ClaimRow.cluster_id)
_TWICE = (
    select(ClaimRow.transport, ClaimRow.vlan)
    .where(ClaimRow.transport.is_not(None), ~_HAS_SERVICE)
    .group_by(ClaimRow.transport, ClaimRow.vlan)
    .having(func.count(ClaimRow.cluster_id.distinct()) > 1)
    .subquery()
)
_READ_COLLISIONS = (
    select(ClaimRow.transport, ClaimRow.vlan, ClusterRow.key, ClusterRow.quarantined, ClusterRow.id)
    .join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    .join(_TWICE, and_(_TWICE.c.transport == ClaimRow.transport, _TWICE.c.vlan == ClaimRow.vlan))
    .order_by(ClaimRow.transport, ClaimRow.vlan, ClusterRow.key, ClusterRow.id)
    .distinct()
)

log = get_log(__name__)


class VlanUser(NamedTuple):
    """A cluster whose network has a VLAN ID, and one of the network's sites."""

    cluster: ClusterRow
    site: str


@dataclass(frozen=True, slots=True)
class VlanCollision:
    """Networks that share a VLAN ID on one transport, and therefore one Ethernet segment.

    ``clusters`` are the keys of the clusters that created the running networks. ``quarantined`` are the keys of the
    clusters that created the networks in quarantine.
    """

    transport: str
    vlan: int
    clusters: tuple[str, ...]
    quarantined: tuple[str, ...]

    @property
    def names(self) -> str:
        """The first :data:`SHOWN_CLUSTERS` clusters and the number of others, such as ``"x, y (in quarantine)"``."""
        found = (*self.clusters, *(f"{key} (in quarantine)" for key in self.quarantined))
        others = f" and {len(found) - SHOWN_CLUSTERS} others" if len(found) > SHOWN_CLUSTERS else ""
        return ", ".join(found[:SHOWN_CLUSTERS]) + others

    def __str__(self) -> str:
        """Return the collision with its remedy as a sentence."""
        several = [False] if len(self.clusters) > 1 else []
        remedy = join_remedies("end all but one of these clusters", [*several, *(True for _ in self.quarantined)])
        return (
            f"transport {self.transport}, VLAN {self.vlan}: expected one network, found the networks of clusters "
            f"{self.names}, which receive each other's frames: {remedy}"
        )


def find_vlan_separated(transport: Transport | None) -> Transport | None:
    """Return the transport if it separates networks only by their VLAN IDs, otherwise None."""
    return None if transport is None or transport.translates else transport


def is_taken(vlan: QueryableAttribute[int]) -> ColumnElement[bool]:
    """Return the condition that a network on the transport ``transport`` (a parameter) has the VLAN ID ``vlan``."""
    return exists().where(_ON_TRANSPORT, ClaimRow.vlan == vlan)


def read_transport_vlans(unit: Unit, transport: Transport | None) -> TransportVlans | None:
    """Return the VLAN IDs of all networks on a transport, or None if the transport is not VLAN-separated."""
    if (vlan_separated := find_vlan_separated(transport)) is None:
        return None
    taken = unit.connection.execute(_READ_VLANS, {"transport": vlan_separated.name}).scalars()
    return TransportVlans(vlan_separated.name, VlanSet(taken))


def find_vlan_user(unit: Unit, transport: Transport | None, vlan: VlanId, network: str) -> VlanUser | None:
    """Return the cluster whose network, other than ``network``, has a VLAN ID on a transport, and one of its sites.

    Return None if no such cluster exists, or if the transport is not VLAN-separated.
    """
    if (vlan_separated := find_vlan_separated(transport)) is None:
        return None
    parameters = {"transport": vlan_separated.name, "vlan": vlan, "except": network}
    row = unit.connection.execute(_FIND_CLAIM, parameters).one_or_none()
    return None if row is None else VlanUser(unit.session.get_one(ClusterRow, row.cluster_id), row.site)


def set_transport(unit: Unit, network: str, transport: Name) -> None:
    """Record the first transport of a network in the network's claims."""
    unit.connection.execute(_SET_TRANSPORT, {"network": network, "new_transport": transport})


def repair_claims(connection: Connection) -> None:
    """Record the network's transport in each claim that lacks it. Idempotent.

    A replica of an earlier version, running after the migration, writes such claims.
    """
    connection.execute(_REPAIR)


def list_collisions(connection: Connection) -> Sequence[VlanCollision]:
    """Return the VLAN IDs that several networks have on one transport.

    Earlier versions of SBF could create such networks.
    """
    found: dict[tuple[str, int], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for transport, vlan, key, is_quarantined, _ in connection.execute(_READ_COLLISIONS):
        found[str(transport), vlan][is_quarantined].append(key)
    return [
        VlanCollision(transport, vlan, tuple(running), tuple(quarantined))
        for (transport, vlan), (running, quarantined) in found.items()
    ]


def log_collisions(connection: Connection) -> None:
    """Log a warning for each VLAN ID that several networks have on one transport."""
    for found in list_collisions(connection):
        log.warning(
            "vlan_shared_on_transport",
            transport=found.transport,
            vlan=found.vlan,
            clusters=found.names,
            reason=str(found),
        )
