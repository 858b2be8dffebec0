"""Gateways' own interfaces in networks, in the wanted documents of gateways. Pure."""

from collections.abc import Mapping

from virtcloud.model.gateway_access import GATEWAY_ADDRESSES
from virtcloud.model.values import Address
from virtcloud.model.wanted import HostWanted, Segment


def add_gateway_addresses(wanted: HostWanted, addresses: Mapping[str, tuple[Address, ...]]) -> HostWanted:
    """Return the wanted state of a gateway with its own addresses. ``addresses`` are by network."""
    segments = tuple(_add_to_segment(segment, addresses.get(segment.id, ())) for segment in wanted.segments)
    return wanted.model_copy(update={"segments": segments})


def _add_to_segment(segment: Segment, addresses: tuple[Address, ...]) -> Segment:
    if not addresses:
        return segment
    added = {"gateway_addresses": addresses, "requires": (*segment.requires, GATEWAY_ADDRESSES)}
    return segment.model_copy(update=added)
