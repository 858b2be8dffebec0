"""The interfaces of gateways in networks, and the links of gateways to the outside.

A gateway gets an interface in a network for its first task in the network: routing, relaying of SSH, publication of
guests, or a service such as NFS.

The *outside* is all computers that are not in a network of SBF. In the topology, administrators describe each gateway's
link to the outside. Administrators also describe each site's destinations: the outside services that clusters may use.
A cluster's spec names the destinations that its guests need. The guests reach no other outside computers.
"""

from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Self

from pydantic import Field, IPvAnyAddress, model_validator

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Address, Mac, Name, PatternText, PortName, UnicodeText

GATEWAY_ADDRESSES: Final = "gateway-addresses"
"""Capability that segments with ``gateway_addresses`` require. Agents without this capability would not configure the
addresses."""
GATEWAY_ROUTER: Final = "gateway-router"
"""Capability that segments with ``router`` require. Agents without this capability would forward no packets to the
outside."""
GATEWAY_PUBLICATIONS: Final = "gateway-publications"
"""Capability that segments with ``publications`` require. Agents without this capability would publish no ports."""
UDP_PUBLICATIONS: Final = "udp-publications"
"""Capability that segments with published UDP ports require. Agents without this capability would publish TCP ports
instead."""
GATEWAY_FQDNS: Final = "gateway-fqdns"
"""Capability that segments with ``router.named_destinations`` require. Agents without this capability would admit none
of these destinations."""
LOWEST_PUBLIC_PORT, HIGHEST_PORT = 1024, 65535
MAX_FQDN: Final = 253
"""Maximum number of characters of an FQDN (RFC 1035)."""
MAX_FQDNS: Final = 32
PRIVATE_NETWORKS: Final = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""Private networks (RFC 1918, 6598, 4193).

An FQDN can have an address in these networks. Gateways admit such an address only if the destination's
``private_networks`` contain the address.
"""


def derive_gateway_mac(network: str, address: Address) -> Mac:
    """Return the MAC address of a gateway's interface in a network, derived from the network's ID and an address.

    ``address`` is the first of the gateway's addresses in the network.
    """
    octets = bytearray(sha256(f"{network}/{address}".encode()).digest()[:6])
    octets[0] = octets[0] & 0x7C | 0x02  # locally administered and unicast (IEEE 802c)
    return Mac(octets.hex(":"))


class PublishedProtocol(StrEnum):
    """The transport protocols of published ports."""

    TCP = "tcp"
    UDP = "udp"


OMIT_TCP: Final = Field(exclude_if=lambda value: value == PublishedProtocol.TCP)
"""Option of a field: documents omit the key if its value is TCP, because older versions reject unknown keys."""


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
    """The fully qualified name of an outside computer, such as ``archive.example.org`` (RFC 1123), in lower case."""

    __slots__ = ()
    pattern = r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
    meaning = "a fully qualified domain name such as archive.example.org"

    def __new__(cls, value: str) -> Self:
        """Check ``value`` and return the name in lower case, without a final dot."""
        text = value.lower().removesuffix(".")
        if reason := _find_name_fault(text):
            raise BadInput(f"expected {cls.meaning}, got {value!r}: {reason}")
        return super().__new__(cls, text)


def _find_name_fault(text: str) -> str | None:
    if "*" in text:
        return "DNS has no addresses for a wildcard; list each name"
    if not text.isascii():
        return "write the name as DNS does, with xn--"
    if ":" in text or text.rpartition(".")[2].isdecimal():
        return "addresses belong to `networks`"
    if len(text) > MAX_FQDN:
        return f"the name has {len(text)} characters, and the maximum is {MAX_FQDN}"
    if "." not in text:
        return "a name without a dot can mean another computer on each network; write the full name"
    return None


class ServicePort(PatternText):
    """The transport protocol and port of an outside service, such as ``tcp/443``."""

    __slots__ = ()
    pattern = r"(tcp|udp)/([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
    meaning = "a protocol and a port such as tcp/443 or udp/53"


class PortRange(PatternText):
    """The range of a gateway's TCP and UDP ports that can be published for guests, such as ``40000-40999``."""

    __slots__ = ()
    pattern = r"[1-9][0-9]{3,4}-[1-9][0-9]{3,4}"
    meaning = "a range of ports from 1024 to 65535 such as 40000-40999"

    def __new__(cls, value: str) -> Self:
        """Check that both ports of ``value`` are valid, and that the lower port is first."""
        text = super().__new__(cls, value)
        first, last = map(int, text.split("-"))
        if not LOWEST_PUBLIC_PORT <= first <= last <= HIGHEST_PORT:
            raise BadInput(f"expected {cls.meaning}, got {value!r}")
        return text

    @property
    def ports(self) -> range:
        """All ports of the range."""
        first, last = map(int, self.split("-"))
        return range(first, last + 1)


class Destination(Document):
    """Outside services that a cluster may request by the destination's name.

    The services run on computers with addresses in ``networks``, or with names in ``fqdns``.
    """

    name: Name
    networks: Annotated[tuple[OutsideNetwork, ...], Field(max_length=256)] = ()
    """The networks of the services' computers."""
    fqdns: Annotated[tuple[Fqdn, ...], Field(max_length=MAX_FQDNS), OMIT_EMPTY] = ()
    """The names of the services' computers. Gateways resolve the names every 30 s by default."""
    private_networks: Annotated[tuple[OutsideNetwork, ...], Field(max_length=64), OMIT_EMPTY] = ()
    """The private networks in which the computers of `fqdns` may be. Gateways ignore the addresses of `fqdns` in other
    private networks."""
    ports: Annotated[tuple[ServicePort, ...], Field(min_length=1, max_length=64)]
    """The ports of the services."""
    description: UnicodeText = ""
    """A text for users."""

    @model_validator(mode="after")
    def _check_computers(self) -> Self:
        if not (self.networks or self.fqdns):
            raise BadInput("expected `networks` or `fqdns`, got none")
        if self.private_networks and not self.fqdns:
            raise BadInput("expected `fqdns` beside `private_networks`, got no `fqdns`", ("private_networks",))
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
    """A gateway's link to the outside."""

    interface: PortName
    """The gateway's interface to the outside. This interface must not be one of the gateway's managed ports."""
    addresses: Annotated[tuple[IPvAnyAddress, ...], Field(max_length=2)] = ()
    """The source addresses of packets from clusters: at most one of each IP version; `[]`: the addresses of the
    interface."""
    publish_ports: Annotated[PortRange | None, OMIT_NONE] = None
    """The TCP and UDP ports of `addresses` that users can publish for guests; null: the gateway publishes no guests."""

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        if len({address.version for address in self.addresses}) < len(self.addresses):
            raise BadInput("expected at most one address of each IP version", ("addresses",))
        if self.publish_ports is not None and not self.addresses:
            raise BadInput("expected an address with `publish_ports`, got none", ("addresses",))
        return self


class PublishedPort(Document):
    """A port of a gateway that leads to a guest. When the publication ends, its open connections end too."""

    address: IPvAnyAddress
    """The address of the gateway."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """The port of the gateway."""
    interface: PortName
    """The gateway's interface towards the outside. Packets that arrive at other interfaces do not reach the guest."""
    guest: Name
    """The guest's name."""
    guest_address: IPvAnyAddress
    """The guest's address in the network. This address and ``address`` have the same IP version."""
    guest_port: Annotated[int, Field(ge=1, le=65535)]
    """The port of the guest."""
    protocol: Annotated[PublishedProtocol, OMIT_TCP] = PublishedProtocol.TCP
    """The transport protocol of both ports."""
    expires_at: datetime
    """The end of the cluster's lease or of the network's lease, whichever is earlier."""


class GatewayRouter(Document):
    """The data that a gateway needs as the router of a network."""

    addresses: tuple[Address, ...]
    """The addresses of the network's router. The gateway has these addresses in addition to its own addresses in the
    network."""
    link: OutsideLink
    """The gateway's link to the outside."""
    destinations: tuple[Destination, ...] = ()
    """The destinations that guests may reach and that have no FQDNs."""
    named_destinations: Annotated[tuple[Destination, ...], OMIT_EMPTY] = ()
    """The destinations that guests may reach and that have FQDNs. Agents that do not know FQDNs ignore this key."""

    @property
    def every_destination(self) -> tuple[Destination, ...]:
        """The destinations that guests may reach."""
        return (*self.destinations, *self.named_destinations)
