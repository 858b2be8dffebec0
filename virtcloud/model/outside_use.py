"""The use of outside destinations by guests: the counters that gateways report, and the sums that SBF shows."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, IPvAnyAddress

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.gateway_access import MAX_FQDNS, Fqdn
from virtcloud.model.values import Name
from virtcloud.model.views import ElementMessage
from virtcloud.model.vpn import ByteCount

MAX_USES = 100_000
MAX_NAME_ADDRESSES: Final = 64
MAX_ERROR: Final = 300


class ResolvedName(Document):
    """An FQDN of a destination, as a gateway resolved it."""

    fqdn: Fqdn
    addresses: Annotated[tuple[IPvAnyAddress, ...], Field(max_length=MAX_NAME_ADDRESSES)] = ()
    """The addresses to which guests may open connections."""
    error: Annotated[ElementMessage | None, Field(max_length=MAX_ERROR), OMIT_NONE] = None
    """Why the gateway does not admit all addresses, or why it has no current DNS answer; null: no error."""


class DestinationUse(Document):
    """The counters of a gateway for one destination of one network. Lost counters restart at 0."""

    network: str
    """ID of the cluster that created the network."""
    destination: Name
    connections: ByteCount = 0
    """Number of connections that guests opened."""
    sent_bytes: ByteCount = 0
    """Bytes of packets from guests in open connections."""
    received_bytes: ByteCount = 0
    """Bytes of packets to guests in open connections."""
    names: Annotated[tuple[ResolvedName, ...], Field(max_length=MAX_FQDNS), OMIT_EMPTY] = ()
    """The FQDNs of the destination."""


class OutsideReport(Document):
    """The counters of a gateway for all destinations of the networks that the gateway serves as router."""

    uses: Annotated[tuple[DestinationUse, ...], Field(max_length=MAX_USES)] = ()
    """One entry for each network and destination."""


class DestinationUseView(Document):
    """The use of a destination by a cluster's network through one gateway."""

    destination: Name
    gateway: Name
    connections: ByteCount
    """Number of connections that guests opened."""
    sent_bytes: ByteCount
    """Bytes of packets from guests in open connections."""
    received_bytes: ByteCount
    """Bytes of packets to guests in open connections."""
    since: datetime
    """When the gateway first reported the destination."""
    reported_at: datetime
    """When the gateway last reported the destination."""
    names: Annotated[tuple[ResolvedName, ...], OMIT_EMPTY] = ()
    """The FQDNs of the destination, as the gateway last resolved them."""
