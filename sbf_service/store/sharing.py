"""Which access ports clusters have: until the last element has confirmed that a cluster is gone, its ports are its."""

from sbf_service.access_ports import User, access_ports_of, refuse_shared, refuse_trunk
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, clusters_where, live
from sbf_service.wanted import LiveCluster
from virtcloud.model.topology import Topology


def refuse_second(unit: Unit, topology: Topology, cluster: LiveCluster) -> None:
    """Raise Conflict when a new cluster goes over an access port that another network has, or may still have."""
    if topology.access_ports and access_ports_of(topology, user := user_of(cluster)):
        refuse_shared(topology, [*_users(unit), user])


def refuse_unshareable(unit: Unit, former: Topology, topology: Topology) -> None:
    """Raise Conflict when a new topology would give an access port to two clusters, or make a taken one a trunk."""
    users = _users(unit) if former.access_ports | topology.access_ports else []
    refuse_shared(topology, users)
    refuse_trunk(former, topology, users)


def user_of(cluster: LiveCluster) -> User:
    """Give a cluster as the rules of access ports see it."""
    joined = None if cluster.joined is None else cluster.joined.spec
    return User(cluster.key, cluster.spec, cluster.network.id, cluster.transport, joined)


def _users(unit: Unit) -> list[User]:
    return [user_of(cluster) for cluster in live(unit, clusters_where(unit, UNSETTLED))]
