"""Clusters: the spec that a user requests, and the states of the lifecycle with their transitions."""

from collections import Counter
from enum import StrEnum
from ipaddress import ip_interface
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.durations import MAX_DEADLINE_S, MAX_LEASE_S
from virtcloud.model.errors import BadInput, IllegalTransition
from virtcloud.model.guest_spec import Guest, GuestSpread
from virtcloud.model.ssh_keys import UserKey
from virtcloud.model.user_data import check_total_size
from virtcloud.model.values import Address, ClusterKey, LoginName, Name, UserName, VlanId


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
"""States in which elements carry the cluster or are being configured for the cluster."""
LEAVING_STATES = frozenset({ClusterState.DRAINING, ClusterState.FAILING})
"""States in which elements remove the cluster."""
ENDED_STATES = frozenset({ClusterState.RELEASED, ClusterState.FAILED})
"""Final states: the transition table has no transition from them."""


def check_transition(state: ClusterState, to: ClusterState) -> ClusterState:
    """Return ``to`` if the lifecycle has the transition from ``state`` to ``to``. Raise IllegalTransition otherwise."""
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state])) or "none"
        raise IllegalTransition(f"a cluster in state {state} cannot become {to}; allowed next states: {allowed}")
    return to


GuestFilters = Literal["addresses", "open"]
"""The values of a spec's ``filters``. Each value changes the default filters of guests' frames.

- ``addresses``: in addition to the default filters, guests may use only the IP addresses of the spec, and the
  link-local IPv6 address that follows from their MAC address
- ``open``: guests may use any MAC address, so a guest can be a bridge, and guests may offer all services. Only hosts
  that allow open filters run guests with ``open``. Even with ``open``, hosts drop frames that affect other clusters:
  frames with VLAN tags, protocols of switches such as spanning tree, and broadcasts above a rate.
"""
GuestService = Literal["dhcp", "ra"]
"""A service that guests offer to other guests of their network: DHCP, or IPv6 router advertisements."""
HostService = Literal["dhcp", "dns", "metadata"]
"""A service that each host of a network offers to its own guests.

- ``dhcp``: DHCP, DHCPv6 and router advertisements, with the addresses of the spec
- ``dns``: the names of all guests of the network
- ``metadata``: the guest's seed by HTTP, as cloud-init reads it
"""
RouterKind = Literal["gateway", "device"]
"""The router of a network: a gateway, or a user's device that joins the network with a VPN profile."""
ClusterService = Literal["nfs"]
"""A service of a gateway at one of the network's sites.

- ``nfs``: an NFSv4.2 server for folders of the cluster's owner
"""
NETWORK_KEYS: Final = (
    "name",
    "vlan",
    "subnets",
    "shares_with",
    "sites",
    "filters",
    "serves",
    "host_services",
    "router",
    "router_addresses",
    "outside",
    "services",
)
"""The keys that may have a value only in the spec of a new network.

In the spec of a member (a cluster that joins another cluster's network), these keys must be empty. If the spec of a
member contains ``subnets: []``, SBF assigns no addresses to the member's guests.
"""


LeaseSeconds = Annotated[float, Field(gt=0, le=MAX_LEASE_S)]


class ClusterSpec(Document):
    """The spec of a cluster.

    ``hosts`` belong to the cluster even without a guest. ``vlan`` requests the same VLAN ID at all sites.

    A cluster with ``joins`` is a member of another cluster's network. A member uses the network's VLAN IDs and ends
    when the network ends. A network may have no hosts. SBF allocates VLAN IDs to the network at all ``sites``, even
    before members join.
    """

    owner: UserName
    name: Name | None = None
    """A name that no other cluster can use until this cluster has ended."""
    vlan: VlanId | None = None
    """The VLAN ID to allocate; null: SBF allocates the VLAN ID that was unused for the longest time."""
    joins: ClusterKey | None = None
    """Name or key of the cluster whose network this cluster joins."""
    subnets: Annotated[tuple[Address, ...], Field(max_length=2)] | None = None
    """Subnets from which SBF assigns addresses to guests: at most one of each IP version. An item such as
    `10.0.0.50/24` is the first address to assign. Null: SBF chooses an IPv4 and an IPv6 subnet if no guest has an
    address. `[]`: SBF assigns no addresses."""
    shares_with: tuple[UserName, ...] = ()
    """Owners whose clusters may join this cluster's network."""
    sites: tuple[Name, ...] = ()
    """Sites of the network, even without a host there."""
    hosts: tuple[Name, ...] = ()
    """Hosts of the cluster, even without a guest."""
    guests: tuple[Guest, ...] = ()
    """The guests: virtual machines and containers."""
    user: LoginName | None = None
    """The login name in the guests; null: the owner's name, or a similar valid name (`eva_nova` for `Eva.Nova`)."""
    authorized_keys: Annotated[tuple[UserKey, ...], OMIT_EMPTY] = ()
    """Public SSH keys that may log in to the guests, in addition to the owner's keys at the creation of the cluster."""
    filters: GuestFilters | None = None
    """Filters of the network's guests: `addresses` (only the IP addresses of the spec) or `open` (any MAC address);
    null: any IP addresses, but only the guest's own MAC address."""
    serves: Annotated[tuple[GuestService, ...], OMIT_EMPTY] = ()
    """Services that guests may offer to other guests. Hosts drop DHCP answers of guests unless `dhcp` is listed, and
    router advertisements of guests unless `ra` is listed."""
    host_services: Annotated[tuple[HostService, ...], OMIT_EMPTY] = ()
    """Services that hosts offer to their guests: `dhcp` with the addresses of the spec, `dns` with the names of the
    network's guests, and `metadata` (the guest's seed by HTTP). `dns` and `metadata` need `dhcp`, because guests learn
    the server's address by DHCP. `metadata` identifies guests by their addresses. Therefore SBF refuses `metadata` with
    open `filters`."""
    services: Annotated[tuple[ClusterService, ...], OMIT_EMPTY] = ()
    """Services of gateways in the network: `nfs` (folders of the owner, by NFSv4.2). For each service, a gateway at one
    of the network's sites must offer the service."""
    vpn: Annotated[bool, OMIT_EMPTY] = False
    """Whether SBF connects the cluster to gateways when the cluster is created.

    If false, SBF connects the cluster to gateways when a user creates the first VPN profile.
    """
    router: Annotated[RouterKind | None, OMIT_NONE] = None
    """The router of the network, to which guests send packets for other networks: `gateway`, or `device` for a device
    of a user ('virtcloud access router'). Null: guests have no default route."""
    router_addresses: Annotated[tuple[Address, ...] | None, OMIT_NONE] = None
    """The addresses of the router: at most one of each IP version. Null: SBF assigns an address of each subnet."""
    outside: Annotated[tuple[Name, ...], Field(max_length=64), OMIT_EMPTY] = ()
    """Names of the sites' destinations that guests may reach. If the list is not empty, a gateway is the network's
    router.
    """
    spread: GuestSpread | None = None
    """Further guests, for which SBF chooses the hosts. The cluster's view lists them in `guests`."""
    lease_s: LeaseSeconds = 4 * 3600
    """Seconds from the creation until the cluster ends, unless the lease is extended."""
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] = 120
    """Maximum duration of the set-up in seconds. If the set-up takes longer, the cluster fails."""

    @property
    def all_hosts(self) -> tuple[Name, ...]:
        """Every host of the cluster, in name order."""
        return tuple(sorted({*self.hosts, *(guest.host for guest in self.guests)}))

    @property
    def uses_gateways(self) -> bool:
        """Whether the cluster needs gateways from its creation: for VPN, as router, or for services."""
        return bool(self.vpn or self.router == "gateway" or self.outside or self.services)

    @model_validator(mode="after")
    def _check_hosts_and_guests(self) -> Self:
        if not self.all_hosts and self.spread is None and (self.joins is not None or not self.sites):
            raise BadInput("expected at least one host or guest, got none")
        for name, count in Counter(guest.name for guest in self.guests).items():
            if (times := count + int(self.spread is not None and self.spread.has_guest(name))) > 1:
                raise BadInput(f"expected each guest to have its own name, got name {name} {times} times")
        return self

    @model_validator(mode="after")
    def _check_member(self) -> Self:
        given = [key for key in NETWORK_KEYS if getattr(self, key)]
        if self.joins is not None and given:
            keys = f"{'key' if len(given) == 1 else 'keys'} {', '.join(given)}"
            raise BadInput(f"expected the {keys} only for a new network; this cluster joins network {self.joins}")
        return self

    @model_validator(mode="after")
    def _check_subnets(self) -> Self:
        versions = [ip_interface(subnet).version for subnet in self.subnets or ()]
        if len(set(versions)) < len(versions):
            raise BadInput(f"expected at most one subnet of IPv{versions[0]}, got {len(versions)}", ("subnets",))
        return self

    @model_validator(mode="after")
    def _check_router(self) -> Self:
        versions = Counter(ip_interface(address).version for address in self.router_addresses or ())
        path = ("router_addresses",)
        for version, times in versions.items():
            if times > 1:
                raise BadInput(f"expected at most one IPv{version} address of the router, got {times}", path)
        if versions and self.router is None and not self.outside:
            raise BadInput(
                "expected router: gateway, router: device or the key outside, because the spec has router_addresses, "
                "got none of them",
                path,
            )
        if self.outside and self.router == "device":
            raise BadInput(
                "expected router: gateway, because the spec has the key outside, got router: device", ("router",)
            )
        return self

    @model_validator(mode="after")
    def _check_services(self) -> Self:
        if self.services and self.subnets == () and not any(guest.addresses for guest in self.guests):
            raise BadInput("expected a subnet for the addresses of services, got subnets: []", ("services",))
        for name in sorted(set(self.services)):  # the spec can repeat a service any number of times
            if any(guest.name == name for guest in self.guests) or (
                self.spread is not None and self.spread.has_guest(name)
            ):
                raise BadInput(f"guest {name}: expected a name other than the service's name {name}", ("guests",))
        return self

    @model_validator(mode="after")
    def _check_host_services(self) -> Self:
        if not self.host_services:
            return self
        path = ("host_services",)
        if "dhcp" not in self.host_services:
            first = self.host_services[0]
            server = {"dns": "DNS"}.get(first, first)
            raise BadInput(
                f"expected dhcp with {first}, because guests learn the address of the {server} server by DHCP", path
            )
        if "metadata" in self.host_services and self.filters == "open":
            raise BadInput(
                "expected no metadata with filters: open, because a guest could read another guest's seed", path
            )
        if "dhcp" in self.serves:
            raise BadInput("expected DHCP servers on hosts or in guests (serves), got both", path)
        if self.subnets == () and not any(guest.addresses for guest in self.guests):
            raise BadInput("expected addresses that DHCP can assign, got subnets: []", path)
        return self


MAX_ATTEMPT: Final = 1_000_000_000
"""The maximum attempt number in a request.

If a request has no attempt number and the key was used before, SBF increments the key's latest attempt number. The
result can exceed this maximum, but still fits into PostgreSQL's 32-bit column.
"""


class ClusterRequest(Document):
    """A request for a cluster. A caller that retries increments ``attempt``; SBF rejects an outdated attempt."""

    spec: ClusterSpec
    """The spec of the cluster."""
    attempt: Annotated[int, Field(ge=0, le=MAX_ATTEMPT)] | None = None
    """The caller's attempt number. SBF answers 410 to a number lower than the latest attempt number."""

    @model_validator(mode="before")
    @classmethod
    def _check_user_data(cls, document: object) -> object:
        """Check the size of all user data before any text is parsed. Stored specs are not checked."""
        spec = document.get("spec") if isinstance(document, dict) else None
        check_total_size(spec.get("guests") if isinstance(spec, dict) else None)
        return document


class LeaseExtension(Document):
    """A request to extend a cluster's lease to at least ``seconds`` from now."""

    seconds: LeaseSeconds
    """Seconds from now."""
