"""Whether a network can be joined over a transport without being moved. Pure."""

from collections.abc import Iterable

from sbf_service.paths import ports_of
from sbf_service.wanted import LiveCluster
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport


def refuse_moves(topology: Topology, network: LiveCluster, transport: Transport | None) -> None:
    """Raise Conflict when a network of one site has another way there than the one that leads to this transport."""
    if transport is None:
        return
    before, after = (ports_of(topology, network.spec, on) for on in (None, transport.name))
    if before != after:
        lost = ", ".join(sorted(before - after))
        raise Conflict(
            f"network {network.key} would be moved to other ports to meet transport {transport.name} (off {lost}): "
            f"choose a host at its own site"
        )


def refuse_unattached(network: LiveCluster, sites: Iterable[Site]) -> None:
    """Raise Conflict for a site to which the transport that a network is on does not lead."""
    for site in sites:
        if network.transport not in {one.transport for one in site.attachments}:
            raise Conflict(
                f"network {network.key} is joined by transport {network.transport}, to which site {site.name} is not "
                f"attached: choose a host at another site"
            )
