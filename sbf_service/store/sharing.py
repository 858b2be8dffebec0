"""Which access ports clusters have: until the last element has confirmed that a cluster is gone, its ports are its."""

from sbf_service.access_ports import User, access_ports_of, refuse_shared, refuse_trunk
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, clusters_where, spec_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


def refuse_second(unit: Unit, topology: Topology, user: User) -> None:
    """Raise Conflict when a new cluster goes over an access port that another has, or may still have."""
    if access_ports_of(topology, user):
        refuse_shared(topology, [*_users(unit), user])


def refuse_unshareable(unit: Unit, former: Topology, topology: Topology) -> None:
    """Raise Conflict when a new topology would give an access port to two clusters, or make a taken one a trunk."""
    users = _users(unit) if former.access_ports | topology.access_ports else []
    refuse_shared(topology, users)
    refuse_trunk(former, topology, users)


def _users(unit: Unit) -> list[User]:
    return [
        User(row.key, spec_of(row), None if row.transport is None else Name(row.transport))
        for row in clusters_where(unit, UNSETTLED)
    ]
