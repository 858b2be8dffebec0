"""What a cluster that is asked for would be: its numbers, its transport, its network. Nothing is written."""

from dataclasses import dataclass

from sbf_service.access.admission import check_admitted, origin_of
from sbf_service.store.asked_number import Sees, sees_none
from sbf_service.store.naming import refuse_taken
from sbf_service.store.networks import joined_numbers, network_for, refuse_same_guests
from sbf_service.store.numbers import Numbers, choose_numbers
from sbf_service.store.pools import Reserved
from sbf_service.store.session import Unit
from sbf_service.store.sharing import refuse_second
from sbf_service.store.standing import live
from sbf_service.store.tables import ClusterRow
from sbf_service.wanted import LiveCluster, Network
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey


@dataclass(frozen=True, slots=True)
class Asked:
    """A cluster that is to be made. ``sees`` says of which owners' clusters the caller may know.

    ``former`` is the newest one under its key before it.
    """

    id: str
    key: str
    attempt: int
    spec: ClusterSpec
    sees: Sees = sees_none
    former: ClusterRow | None = None

    @property
    def version(self) -> int:
        """The version of its first view: past all that were shown under its key."""
        return 1 if self.former is None else self.former.version + 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """A cluster as elements would have to carry it; its network's numbers with it; a member's network as it is."""

    cluster: LiveCluster
    numbers: Numbers
    joined: ClusterRow | None = None


def choose_cluster(unit: Unit, topology: Topology, asked: Asked, reserved: Reserved) -> Chosen:
    """Say what it would be. Raises NotFound, Forbidden, Conflict for one that cannot be."""
    check_admitted(topology, asked.spec, origin_of(asked.spec.owner, unit.who))
    refuse_taken(unit, asked.key, asked.spec.name)
    chosen = (_own if asked.spec.joins is None else _member)(unit, topology, asked, reserved)
    refuse_second(unit, topology, chosen.cluster)
    return chosen


def _own(unit: Unit, topology: Topology, asked: Asked, reserved: Reserved) -> Chosen:
    numbers = choose_numbers(unit, topology, asked.spec, reserved, asked.sees)
    return Chosen(_cluster(asked, numbers), numbers)


def _member(unit: Unit, topology: Topology, asked: Asked, reserved: Reserved) -> Chosen:
    row = network_for(unit, asked.spec)
    refuse_same_guests(unit, row, asked.spec)
    (network,) = live(unit, [row])
    numbers = joined_numbers(unit, topology, network, asked.spec, reserved, asked.sees)
    return Chosen(_cluster(asked, numbers, network.network), numbers, row)


def _cluster(asked: Asked, numbers: Numbers, joined: Network | None = None) -> LiveCluster:
    key = ClusterKey(asked.key)
    return LiveCluster(asked.id, key, asked.spec, numbers.vlans, numbers.on, numbers.service, joined)
