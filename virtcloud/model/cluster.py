"""Clusters: the spec that a user requests, and the states of the lifecycle with their transitions."""

from collections import Counter
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, IllegalTransition
from virtcloud.model.values import Address, ClusterKey, Mac, Name, UserName, VlanId


class ClusterState(StrEnum):
    """The states of a cluster's lifecycle."""

    REQUESTED = "requested"
    CONFIGURING = "configuring"
    ACTIVE = "active"
    DEGRADED = "degraded"
    DRAINING = "draining"
    RELEASED = "released"
    FAILING = "failing"
    FAILED = "failed"


TRANSITIONS: dict[ClusterState, frozenset[ClusterState]] = {
    ClusterState.REQUESTED: frozenset({ClusterState.CONFIGURING}),
    ClusterState.CONFIGURING: frozenset({ClusterState.ACTIVE, ClusterState.FAILING, ClusterState.DRAINING}),
    ClusterState.ACTIVE: frozenset({ClusterState.DEGRADED, ClusterState.DRAINING}),
    ClusterState.DEGRADED: frozenset({ClusterState.ACTIVE, ClusterState.DRAINING}),
    ClusterState.DRAINING: frozenset({ClusterState.RELEASED}),
    ClusterState.FAILING: frozenset({ClusterState.FAILED}),
    ClusterState.RELEASED: frozenset(),
    ClusterState.FAILED: frozenset(),
}
WANTED_STATES = frozenset({ClusterState.CONFIGURING, ClusterState.ACTIVE, ClusterState.DEGRADED})
"""States in which elements carry the cluster or are being configured for it."""
LEAVING_STATES = frozenset({ClusterState.DRAINING, ClusterState.FAILING})
"""States in which elements remove the cluster."""
ENDED_STATES = frozenset({ClusterState.RELEASED, ClusterState.FAILED})
"""Final states, without transitions."""


def check_transition(state: ClusterState, to: ClusterState) -> ClusterState:
    """Return ``to`` if the lifecycle has the transition from ``state`` to ``to``. Raise IllegalTransition otherwise."""
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state])) or "nowhere"
        raise IllegalTransition(f"a cluster that is {state} cannot become {to}; from there it can go to: {allowed}")
    return to


class Guest(Document):
    """A virtual machine of a cluster on a host. Memory is in MiB.

    The user chooses the addresses, each with its prefix length (``10.0.0.1/24``). Without a MAC address, the guest gets
    a generated one that differs in every cluster.
    """

    name: Name
    host: Name
    image: Name
    memory_mb: Annotated[int, Field(ge=16, le=16 * 1024 * 1024)] = 256
    """Memory in MiB."""
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of virtual processors."""
    mac: Mac | None = None
    """MAC address; null to generate one."""
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""


LeaseSeconds = Annotated[float, Field(gt=0, le=366 * 86400)]


class ClusterSpec(Document):
    """The spec of a cluster.

    ``hosts`` are hosts of the cluster even if they run none of its guests. The lease and the deadline for the set-up
    are in seconds. A ``name`` is unique among running clusters. ``vlan`` requests a VLAN ID, the same at all sites.

    A cluster that ``joins`` another, by its name or key, is a member of that network: it has no VLAN IDs of its own and
    ends with the network. Clusters of the owners in ``shares_with`` may join this cluster's network. A network for
    members needs no host: VLAN IDs are allocated to it at all ``sites``, even before members join it.
    """

    owner: UserName
    name: Name | None = None
    """A name that no other cluster can use until this cluster has ended."""
    vlan: VlanId | None = None
    """The VLAN ID to allocate; null for the one unused for longest."""
    joins: ClusterKey | None = None
    """Name or key of the cluster whose network this cluster joins."""
    shares_with: tuple[UserName, ...] = ()
    """Owners whose clusters may join this cluster's network."""
    sites: tuple[Name, ...] = ()
    """Sites of the network, even without a host there."""
    hosts: tuple[Name, ...] = ()
    """Hosts of the cluster, even without a guest."""
    guests: tuple[Guest, ...] = ()
    """The virtual machines."""
    lease_s: LeaseSeconds = 4 * 3600
    """Seconds from the creation until the cluster ends, unless extended."""
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 120
    """Maximum duration of the set-up in seconds; after it the cluster fails."""

    @property
    def all_hosts(self) -> tuple[Name, ...]:
        """Every host of the cluster, in name order."""
        return tuple(sorted({*self.hosts, *(guest.host for guest in self.guests)}))

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if not self.all_hosts and (self.joins is not None or not self.sites):
            raise BadInput("expected at least one host or guest, got none")
        for name, times in Counter(guest.name for guest in self.guests).items():
            if times > 1:
                raise BadInput(f"expected each guest to have its own name, got {name} {times} times")
        return self

    @model_validator(mode="after")
    def _a_member_has_what_its_network_has(self) -> Self:
        own = [key for key in ("name", "vlan", "shares_with", "sites") if getattr(self, key)]
        if self.joins is not None and own:
            keys = " and no ".join(own)
            raise BadInput(f"expected no {keys} of a cluster that joins {self.joins}: its network owns these")
        return self


class ClusterRequest(Document):
    """A request for a cluster. A caller that retries increments ``attempt``; SBF rejects an outdated attempt."""

    spec: ClusterSpec
    """The spec of the cluster."""
    attempt: Annotated[int, Field(ge=0)] | None = None
    """The caller's attempt. A number lower than the latest attempt is refused with 410."""


class LeaseExtension(Document):
    """A request to extend a cluster's lease to at least ``seconds`` from now."""

    seconds: LeaseSeconds
    """Seconds from now."""
