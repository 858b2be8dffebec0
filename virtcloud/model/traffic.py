"""The traffic of clusters: counters that agents report, and the rates that SBF computes from them.

The counters count the frames at the uplink port of a cluster's bridge on a host or gateway. In a tagged segment, the
uplink port is the interface of the cluster's VLAN, such as `eth0.100`. In an untagged segment, the uplink port is the
uplink interface itself, such as `eth0`. Frames between two guests of the same host do not pass the uplink port.
"""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from virtcloud.model.document import Document
from virtcloud.model.values import Name
from virtcloud.model.vpn import ByteCount

MAX_SEGMENTS: Final = 4096
"""Maximum number of clusters on one host: one cluster for each of the 4096 VLAN IDs."""
PortIdentity = Annotated[str, StringConstraints(max_length=40, pattern=r"^[!-~]*$")]


class SegmentCounters(Document):
    """The counters of a cluster's uplink port on one element. The counters of a new interface start at 0."""

    network: str
    """ID of the cluster that created the network."""
    port: PortIdentity
    """The interface and its index, such as `eth0.100#17`. Counters of different ports are not compared."""
    received_bytes: ByteCount
    """Bytes of frames from the site's network to this element."""
    sent_bytes: ByteCount
    """Bytes of frames from this element to the site's network."""
    received_frames: ByteCount
    """Frames from the site's network to this element."""
    sent_frames: ByteCount
    """Frames from this element to the site's network."""


class TrafficReport(Document):
    """The counters of all clusters on one element."""

    segments: Annotated[tuple[SegmentCounters, ...], Field(max_length=MAX_SEGMENTS)] = ()
    """One entry for each cluster."""


class TrafficRate(Document):
    """The mean rates of a period between two reports."""

    ends: datetime
    """End of the period."""
    seconds: float
    """Length of the period."""
    received_bytes: float
    """Bytes per second from the site's network to the element."""
    sent_bytes: float
    """Bytes per second from the element to the site's network."""
    received_frames: float
    """Frames per second from the site's network to the element."""
    sent_frames: float
    """Frames per second from the element to the site's network."""


class ElementTraffic(Document):
    """The traffic of a cluster's network at one host or gateway."""

    element: Name
    site: Name
    reported_at: datetime
    """When the element's agent last reported the counters."""
    rates: tuple[TrafficRate, ...] = ()
    """The rates of the last minutes, oldest first. Periods without a rate, such as after a restart of the host, are
    left out.
    """
