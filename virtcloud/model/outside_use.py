"""The use of destinations outside: counters of gateways, and their sums as SBF shows them."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name
from virtcloud.model.vpn import ByteCount

MAX_USES = 100_000


class DestinationUse(Document):
    """The counters of a gateway for one destination of one network. They begin at 0 again if they are lost."""

    network: str
    """Id of the network's cluster."""
    destination: Name
    connections: ByteCount = 0
    """Number of connections that guests opened."""
    sent_bytes: ByteCount = 0
    """Bytes of packets from guests in open connections."""
    received_bytes: ByteCount = 0
    """Bytes of packets to guests in open connections."""


class OutsideReport(Document):
    """The counters of a gateway for all destinations of all networks whose router the gateway is."""

    uses: Annotated[tuple[DestinationUse, ...], Field(max_length=MAX_USES)] = ()
    """One element for each network and destination."""


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
    """When the gateway reported the destination first."""
    reported_at: datetime
    """When the gateway reported the destination last."""
