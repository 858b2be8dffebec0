"""Gateways' own interfaces in networks, by which a gateway serves a network as router, relay or server.

Administrators describe a gateway's link to the outside and a site's destinations in the topology. A cluster names the
destinations that its guests need. Nothing else outside the network is reachable.
"""

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Self

from pydantic import Field, IPvAnyAddress, model_validator

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Address, Name, PatternText, PortName

GATEWAY_ADDRESSES: Final = "gateway-addresses"
"""The requirement of segments with ``gateway_addresses``. An agent that ignores this key would offer none of them."""
GATEWAY_ROUTER: Final = "gateway-router"
"""The requirement of segments with ``router``. Guests would have no way out through an agent that ignores this key."""
GATEWAY_PUBLICATIONS: Final = "gateway-publications"
"""The requirement of segments with ``publications``. An agent that ignores this key would publish none of them."""
UDP_PUBLICATIONS: Final = "udp-publications"
"""The requirement of segments with publications of UDP ports. An agent that ignores the protocol would publish TCP."""
GATEWAY_FQDNS: Final = "gateway-fqdns"
"""The requirement of segments with ``router.named_destinations``. An agent that ignores this key would admit none."""
LOWEST_PUBLIC_PORT, HIGHEST_PORT = 1024, 65535
MAX_FQDN: Final = 253
"""The most characters of an FQDN (RFC 1035)."""
MAX_FQDNS: Final = 32
"""The most FQDNs of a destination."""
PRIVATE_NETWORKS: Final = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""The networks that FQDNs resolve to only with permission (RFC 1918, 6598, 4193)."""


class PublishedProtocol(StrEnum):
    """The transport protocols of published ports."""

    TCP = "tcp"
    UDP = "udp"


OMIT_TCP: Final = Field(exclude_if=lambda value: value == PublishedProtocol.TCP)
"""TCP is left out of documents, because an earlier version refuses a key that it does not know."""


class OutsideNetwork(PatternText):
    """An IPv4 or IPv6 network of a destination, such as ``192.0.2.0/24`` or ``2001:db8::/32``."""

    __slots__ = ()
    pattern = r"[0-9A-Fa-f.:]+(/[0-9]{1,3})?"
    meaning = "a network such as 192.0.2.0/24, 192.0.2.10/32 or 2001:db8::/32"

    def __new__(cls, value: str) -> Self:
        """Check ``value`` and return its canonical form."""
        text = super().__new__(cls, value)
        try:
            return super().__new__(cls, str(ip_network(text)))
        except ValueError as error:
            raise BadInput(f"expected {cls.meaning}, got {value!r}") from error


class Fqdn(PatternText):
    """The fully qualified name of a computer outside, such as ``archive.example.org`` (RFC 1123), in lower case."""

    __slots__ = ()
    pattern = r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
    meaning = "a fully qualified domain name such as archive.example.org"

    def __new__(cls, value: str) -> Self:
        """Check ``value`` and return it in lower case, without the dot of the root."""
        text = value.lower().removesuffix(".")
        if reason := _find_name_fault(text):
            raise BadInput(f"expected {cls.meaning}, got {value!r}: {reason}")
        return super().__new__(cls, text)


def _find_name_fault(text: str) -> str | None:
    """Return why a text cannot be an FQDN, if this has a remedy."""
    if "*" in text:
        return "a wildcard has no addresses that a gateway could ask for; list each name"
    if not text.isascii():
        return "write the name as DNS does, with xn--"
    if ":" in text or text.rpartition(".")[2].isdecimal():
        return "addresses belong to `networks`"
    if len(text) > MAX_FQDN:
        return f"it has {len(text)} characters, and the most are {MAX_FQDN}"
    if "." not in text:
        return "a name without a dot differs from computer to computer"
    return None


class ServicePort(PatternText):
    """The transport protocol and port of a service outside, such as ``tcp/443``."""

    __slots__ = ()
    pattern = r"(tcp|udp)/([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
    meaning = "a protocol and a port such as tcp/443 or udp/53"


class PortRange(PatternText):
    """The ports of a gateway at which guests are published, such as ``40000-40999``, for TCP and for UDP."""

    __slots__ = ()
    pattern = r"[1-9][0-9]{3,4}-[1-9][0-9]{3,4}"
    meaning = "a range of ports from 1024 to 65535 such as 40000-40999"

    def __new__(cls, value: str) -> Self:
        """Check ``value``: its ports, and their order."""
        text = super().__new__(cls, value)
        first, last = map(int, text.split("-"))
        if not LOWEST_PUBLIC_PORT <= first <= last <= HIGHEST_PORT:
            raise BadInput(f"expected {cls.meaning}, got {value!r}")
        return text

    @property
    def ports(self) -> range:
        """The ports."""
        first, last = map(int, self.split("-"))
        return range(first, last + 1)


class Destination(Document):
    """Services outside that clusters may request by name: computers in ``networks`` or with names in ``fqdns``."""

    name: Name
    networks: Annotated[tuple[OutsideNetwork, ...], Field(max_length=256)] = ()
    """The networks of the services' computers."""
    fqdns: Annotated[tuple[Fqdn, ...], Field(max_length=MAX_FQDNS), OMIT_EMPTY] = ()
    """The names of the services' computers. Gateways resolve them every 30 s."""
    private_networks: Annotated[tuple[OutsideNetwork, ...], Field(max_length=64), OMIT_EMPTY] = ()
    """The private networks in which computers with these names may be. Other private addresses are ignored."""
    ports: Annotated[tuple[ServicePort, ...], Field(min_length=1, max_length=64)]
    """The ports of the services."""
    description: str = ""
    """A text for users."""

    @model_validator(mode="after")
    def _check_computers(self) -> Self:
        if not (self.networks or self.fqdns):
            raise BadInput("expected `networks` or `fqdns`, got none")
        if self.private_networks and not self.fqdns:
            raise BadInput("expected `fqdns` with `private_networks`, got none", ("private_networks",))
        for text in self.private_networks:
            if not _is_private(ip_network(text)):
                known = ", ".join(map(str, PRIVATE_NETWORKS))
                raise BadInput(f"expected a network in {known}, got {text}", ("private_networks",))
        return self


def _is_private(network: IPv4Network | IPv6Network) -> bool:
    return any(
        network.version == private.version and network.subnet_of(private)  # type: ignore[arg-type] # same version
        for private in PRIVATE_NETWORKS
    )


class OutsideLink(Document):
    """A gateway's link to computers outside of clusters."""

    interface: PortName
    """The gateway's interface by which packets leave. It is not one of the managed ports."""
    addresses: Annotated[tuple[IPvAnyAddress, ...], Field(max_length=2)] = ()
    """The source addresses of packets from clusters: at most one of each IP version; `[]`: those of the interface."""
    publish_ports: Annotated[PortRange | None, OMIT_NONE] = None
    """The TCP and UDP ports of these addresses at which users may publish guests; null: none."""

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        if len({address.version for address in self.addresses}) < len(self.addresses):
            raise BadInput("expected at most one address of each IP version", ("addresses",))
        if self.publish_ports is not None and not self.addresses:
            raise BadInput("expected an address with `publish_ports`, got none", ("addresses",))
        return self


class PublishedPort(Document):
    """A port of a gateway that leads to a guest. Open connections end with the publication."""

    address: IPvAnyAddress
    """The address of the gateway."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """The port of the gateway."""
    interface: PortName
    """The gateway's interface towards the outside. Packets that arrive at other interfaces do not reach the guest."""
    guest: Name
    """The guest's name."""
    guest_address: IPvAnyAddress
    """The guest's address in the network, of the same IP version."""
    guest_port: Annotated[int, Field(ge=1, le=65535)]
    """The port of the guest."""
    protocol: Annotated[PublishedProtocol, OMIT_TCP] = PublishedProtocol.TCP
    """The transport protocol of both ports."""
    expires_at: datetime
    """The end of the cluster's lease."""


class GatewayRouter(Document):
    """What a gateway needs to be the router of a network."""

    addresses: tuple[Address, ...]
    """The addresses of the router, besides the gateway's own addresses."""
    link: OutsideLink
    """The gateway's link to the outside."""
    destinations: tuple[Destination, ...] = ()
    """The destinations without FQDNs that guests may reach."""
    named_destinations: Annotated[tuple[Destination, ...], OMIT_EMPTY] = ()
    """The destinations with FQDNs that guests may reach. Agents that do not know FQDNs ignore this key."""

    @property
    def every_destination(self) -> tuple[Destination, ...]:
        """The destinations that guests may reach."""
        return (*self.destinations, *self.named_destinations)
