"""The drawings of sites and clusters that a page shows to a reader, according to the reader's rights.

Users who may read the topology see whole sites. Other users see the sites as tiles and, on a cluster's page, only the
elements and ports of the cluster. The API shows the same elements and ports to the cluster's owner.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from sbf_service.bootstrap import SbfService
from sbf_service.console.drawing.scene import Scene
from sbf_service.console.drawing.site_layout import MapContents
from sbf_service.console.drawing.site_map import draw_sites
from sbf_service.console.drawing.tiles import Tile, draw_tiles
from sbf_service.console.rendering import PREFIX
from sbf_service.console.troubles import Level
from sbf_service.domain.paths import find_cluster_ports, list_elements
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortRef
from virtcloud.model.views import ClusterView

MAX_DETAILED_SITES: Final = 4
MAX_DETAILED_ELEMENTS: Final = 60
MAX_PATH_SITES: Final = 8


@dataclass(frozen=True, slots=True)
class ClusterPath:
    """The ports of a cluster's path, and the topology that contains them."""

    topology: Topology
    ports: frozenset[PortRef]
    transport: Name | None


def is_small(sites: Sequence[Site]) -> bool:
    """Return whether a drawing of these sites with all elements is legible."""
    return len(sites) <= MAX_DETAILED_SITES and sum(len(site.elements) for site in sites) <= MAX_DETAILED_ELEMENTS


def draw_overview(topology: Topology | None, levels: Mapping[Name, Level], tiles: Sequence[Tile]) -> Scene | None:
    """Return the drawing of the start page: whole sites if they are legible, otherwise tiles.

    Return None if neither whole sites nor tiles can be drawn.
    """
    if topology is not None and is_small(topology.sites):
        site_levels = {Name(tile.name): tile.level for tile in tiles if tile.level is not None}
        return draw_whole_sites(topology, topology.sites, levels, site_levels)
    transports = [] if topology is None else [str(transport.name) for transport in topology.transports]
    return draw_tiles(tiles, transports) if tiles else None


def draw_whole_sites(
    topology: Topology, sites: Sequence[Site], levels: Mapping[Name, Level], site_levels: Mapping[Name, Level]
) -> Scene:
    """Return the drawing of sites with all their elements."""
    return draw_sites(MapContents(topology, tuple(sites), levels, frozenset(), make_path, site_levels=site_levels))


def draw_cluster(path: ClusterPath, levels: Mapping[Name, Level], *, whole: bool) -> Scene | None:
    """Return the drawing of a cluster's sites with its highlighted path.

    If ``whole`` is false, or whole sites would be too large, draw only the elements of the path. Return None if the
    path is empty or has more than `MAX_PATH_SITES` sites.
    """
    names = list_elements(path.ports)
    sites = [site for site in path.topology.sites if any(element.name in names for element in site.elements)]
    if not sites or len(sites) > MAX_PATH_SITES:
        return None
    only = None if whole and is_small(sites) else names
    paths = make_path if whole else make_site_path
    contents = MapContents(path.topology, tuple(sites), levels, path.ports, paths, only, path.transport)
    return draw_sites(contents)


def find_cluster_path(service: SbfService, view: ClusterView) -> ClusterPath | None:
    """Return the path of a cluster.

    Return None if the cluster is ending or has ended, if the topology has no path, or if the stored spec is unreadable.
    The caller must have the right to read the cluster.
    """
    if view.state not in WANTED_STATES:
        return None
    try:
        with service.store.read() as unit:
            return _compute_path(unit, view)
    except (VirtcloudError, ValidationError):
        return None


def _compute_path(unit: Unit, view: ClusterView) -> ClusterPath:
    topology = read_topology(unit)
    (live,) = make_live_clusters(unit, [require_cluster(unit, view.key, view.id)])
    return ClusterPath(topology, find_cluster_ports(topology, live), live.transport)


def make_path(kind: str, name: Name) -> str | None:
    """Return the URL path of the page of a site or an element."""
    return f"{PREFIX}/{'sites' if kind == 'site' else 'elements'}/{name}"


def make_site_path(kind: str, name: Name) -> str | None:
    """Return the URL path of a site's page; None for an element.

    This function is for readers who may not read elements.
    """
    return make_path(kind, name) if kind == "site" else None


def list_site_transports(topology: Topology | None) -> dict[Name, tuple[str, ...]]:
    """Return the names of the transports of each site."""
    sites: Iterable[Site] = () if topology is None else topology.sites
    return {
        site.name: tuple(dict.fromkeys(str(attachment.transport) for attachment in site.attachments)) for site in sites
    }
