"""The warnings of ``cluster create`` about a new cluster."""

from collections.abc import Iterable, Iterator

from virtcloud import __version__
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element_views import SiteView
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet


def describe_missing_addresses(spec: ClusterSpec, view: ClusterView) -> str | None:
    """Return a warning if neither ``spec`` nor SBF has assigned addresses to the guests of a new network.

    Version 0.2.0 of SBF assigns no addresses. The present version assigns addresses, and its view of the cluster
    contains the subnets.
    """
    has_addresses = view.spec.subnets is not None or any(guest.addresses for guest in view.spec.guests)
    if has_addresses or not view.spec.guests or spec.joins is not None:
        return None
    return (
        f"the guests of cluster {view.key} have no addresses: expected addresses from SBF, got none; SBF may be older "
        f"than this client, virtcloud {__version__}. Upgrade SBF, or use --network such as 10.0.0.0/24; then delete "
        "the cluster, and create it again"
    )


def find_unreachable_sites(view: ClusterView, sites: Iterable[SiteView]) -> Iterator[str]:
    """Yield a sentence for each site that the cluster's network can reach only with a translation of VLAN IDs.

    The network has no VLAN ID at such a site, and none of the network's VLAN IDs at other sites is free at this site.
    """
    vlan_ids = set(view.vlans.values())
    for site in sites:
        if site.name not in view.vlans and vlan_ids and not vlan_ids & set(site.free):
            yield (
                f"VLAN {VlanSet(vlan_ids)} is not free at site {site.name}: clusters there can join the network of "
                f"cluster {view.key} only if the transport translates VLAN IDs. To reserve a VLAN ID at {site.name}, "
                f"create the cluster with --reach {site.name}"
            )
