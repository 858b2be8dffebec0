"""The parts of a topology: a part for each site, and one common part. SBF stores, reads and replaces single parts.

A topology that is made of parts has its links in a fixed order: the links within each site in the order of the sites,
then the links between sites.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from virtcloud.model.document import Document
from virtcloud.model.element import Host
from virtcloud.model.errors import BadInput
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName
from virtcloud.model.yield_points import with_yield_points

T = TypeVar("T")


class CommonPart(Document):
    """The data that belong to no single site: name, transports, order of the sites, and links between sites."""

    name: Name
    transports: tuple[Transport, ...] = ()
    sites: tuple[Name, ...]
    links: tuple[Link, ...] = ()


def common_part_of(topology: Topology) -> CommonPart:
    """Return the common part of a topology."""
    return CommonPart.model_construct(
        name=topology.name,
        transports=topology.transports,
        sites=tuple(site.name for site in topology.sites),
        links=topology.links_between,
    )


def join_parts(common: CommonPart, parts: Mapping[Name, SitePart], former: Topology | None = None) -> Topology:
    """Return the topology that consists of these parts. The parts are not checked.

    Sites of ``common`` that ``parts`` lacks come from ``former``. Raise BadInput for such a site if ``former`` is None,
    and NotFound if ``former`` also lacks the site. The look-ups of ``former`` (cached properties such as
    ``sites_by_name``) are reused where possible.
    """
    sites = tuple(parts[name].site if name in parts else _require(former, name) for name in common.sites)
    known = {} if former is None else former.links_by_site
    within = {name: parts[name].links if name in parts else known.get(name, ()) for name in common.sites}
    within = {name: links for name, links in within.items() if links}
    topology = Topology.model_construct(
        name=common.name,
        transports=common.transports,
        sites=sites,
        links=(*chain.from_iterable(within.values()), *common.links),
    )
    vars(topology).update(links_by_site=within, links_between=common.links)
    if former is not None and tuple(former.sites_by_name) == common.sites:
        _derive_look_ups(former, topology)
    return topology


def _require(former: Topology | None, name: Name) -> Site:
    if former is None:
        raise BadInput(f"site {name}: expected its part of the topology, found none")
    return former.site(name)


def arrange_links(topology: Topology) -> Topology:
    """Return the topology with its links in the order of :func:`join_parts`."""
    parts = {site.name: site_part_of(topology, site.name) for site in topology.sites}
    return join_parts(common_part_of(topology), parts)


def share_parts(topology: Topology, former: Topology) -> Topology:
    """Return ``topology`` with the objects and look-ups of ``former`` for all parts that are equal in both."""
    if topology.links == former.links and _has_equal_names(topology, former):
        vars(topology).update(links_by_site=former.links_by_site, links_between=former.links_between)
    common, before = common_part_of(topology), common_part_of(former)
    known, within, former_within = former.sites_by_name, topology.links_by_site, former.links_by_site
    parts = {
        site.name: SitePart.model_construct(
            site=_share(known.get(site.name), site),
            links=_share(former_within.get(site.name), within.get(site.name, ())),
        )
        for site in with_yield_points(topology.sites)
    }
    return join_parts(_share(before, common), parts, former)


def _share(former: T | None, new: T) -> T:
    return former if former is new or (former is not None and former == new) else new


def list_changed_sites(former: Topology, topology: Topology) -> Iterator[Name]:
    """Yield the sites of ``topology`` whose parts differ from their parts in ``former``."""
    known, before, after = former.sites_by_name, former.links_by_site, topology.links_by_site
    for site in with_yield_points(topology.sites):
        if not (_equals(known.get(site.name), site) and _equals(before.get(site.name), after.get(site.name))):
            yield site.name


def _equals(former: object, new: object) -> bool:
    return former is new or former == new


def has_equal_paths(before: Topology, after: Topology) -> bool:
    """Return whether two topologies have equal values for everything that affects paths and wanted states.

    Of a host, these values are the name and the linked ports. All other values of hosts, and values of sites such as
    admission rules, images and filters, are ignored. Links that are equal, but not the same objects, count as different
    (see :func:`share_parts`). A topology that took over the computed paths of the other topology has equal paths.
    """
    if before.computed is after.computed:
        return True
    if not _equals(before.transports, after.transports) or any(list_differing_links(before, after)):
        return False
    pairs = zip(before.sites, after.sites, strict=False)
    return len(before.sites) == len(after.sites) and all(
        old is new or _has_equal_site_wiring(old, new, before.peers) for old, new in with_yield_points(pairs)
    )


def _has_equal_site_wiring(before: Site, after: Site, linked: Container[str]) -> bool:
    keys = ("name", "attachments", "switches", "edges", "gateways")
    return (
        all(getattr(before, key) == getattr(after, key) for key in keys)
        and len(before.hosts) == len(after.hosts)
        and all(_has_equal_uplinks(old, new, linked) for old, new in zip(before.hosts, after.hosts, strict=True))
    )


def _has_equal_uplinks(before: Host, after: Host, linked: Container[str]) -> bool:
    if before.name != after.name:
        return False
    return before.ports == after.ports or _linked_ports_of(before, linked) == _linked_ports_of(after, linked)


def _linked_ports_of(host: Host, linked: Container[str]) -> list[PortName]:
    return [port for port in host.ports if f"{host.name}:{port}" in linked]


def replace_site_part(topology: Topology, part: SitePart) -> Topology:
    """Return the topology with one site's part replaced. Check only this site and the sites that the change concerns.

    Raise NotFound for an unknown site. Raise BadInput for a link to another site. Raise ValidationError for a site with
    faults.
    """
    former = topology.site(part.site.name)
    names = {element.name for element in part.site.elements}
    for index, link in enumerate(part.links):
        if not all(end.element in names for end in link.ends):
            raise BadInput(
                f"link {link.a} to {link.b}: expected two elements of site {part.site.name}; to change links to other "
                "sites, replace the whole topology",
                ("links", index),
            )
    _check_part(topology, former, part)
    return join_parts(common_part_of(topology), {part.site.name: part}, topology)


def _check_part(topology: Topology, former: Site, part: SitePart) -> None:
    """Raise ValidationError if a new part has a fault, by itself or together with another site.

    Only two kinds of other sites are checked: sites with a link to the changed site, and sites with an element that has
    the name of an added element.
    """
    known = {element.name for element in former.elements}
    new = {element.name for element in part.site.elements} - known
    concerned = {topology.site_of[name].name for name in new if name in topology.elements}
    between = [link for link in topology.links_between if _sites_of(topology, link) & {former.name}]
    concerned |= {name for link in between for name in _sites_of(topology, link)} - {former.name}
    others = [site_part_of(topology, name) for name in sorted(concerned, key=topology.site_positions.__getitem__)]
    Topology.model_validate(
        {
            "name": topology.name,
            "transports": topology.transports,
            "sites": (part.site, *(other.site for other in others)),
            "links": (*part.links, *chain.from_iterable(other.links for other in others), *between),
        }
    )


def _sites_of(topology: Topology, link: Link) -> set[Name]:
    return {topology.site_of[end.element].name for end in link.ends}


def _derive_look_ups(before: Topology, after: Topology) -> None:
    """Compute the look-ups of ``after`` that can be derived quickly from the look-ups of ``before``.

    Both topologies must have the same names of sites in the same order.
    """
    changed = [(old, new) for old, new in zip(before.sites, after.sites, strict=True) if old is not new]
    look_ups: dict[str, Any] = {
        "site_positions": before.site_positions,
        "sites_by_name": before.sites_by_name | {new.name: new for _, new in changed},
    }
    if before.transports is after.transports:
        look_ups["transports_by_name"] = before.transports_by_name
    if _has_equal_names(before, after):
        new_sites = [new for _, new in changed]
        look_ups["elements"] = before.elements | {one.name: one for site in new_sites for one in site.elements}
        look_ups["site_of"] = before.site_of | {one.name: site for site in new_sites for one in site.elements}
        look_ups["hosts"] = before.hosts | {host.name: host for site in new_sites for host in site.hosts}
        look_ups["gateways"] = before.gateways | {one.name: one for site in new_sites for one in site.gateways}
    lost, added = list_differing_links(before, after)
    look_ups["peers"], look_ups["access_ports"] = before.peers, before.access_ports
    if lost or added:
        look_ups["peers"] = _replace_peers(before, lost, added)
        access = {end for link in added if link.access for end in link.ends}
        look_ups["access_ports"] = before.access_ports.difference(end for link in lost for end in link.ends) | access
    if has_equal_paths(before, after):
        look_ups["computed"] = before.computed
    vars(after).update(look_ups)


def _has_equal_names(before: Topology, after: Topology) -> bool:
    pairs = zip(before.sites, after.sites, strict=False)
    return len(before.sites) == len(after.sites) and all(
        old is new or (old.name, _list_names(old)) == (new.name, _list_names(new))
        for old, new in with_yield_points(pairs)
    )


def _list_names(site: Site) -> list[list[Name]]:
    groups: tuple[Iterable[Any], ...] = (site.switches, site.edges, site.hosts, site.gateways)
    return [[element.name for element in group] for group in groups]


def list_differing_links(before: Topology, after: Topology) -> tuple[list[Link], list[Link]]:
    """Return the links of ``before`` and the links of ``after``, both without unchanged groups of links.

    A group is the links of one site, or the links between sites. An unchanged group is the same object in both
    topologies.
    """
    lost, added = list[Link](), list[Link]()
    for name in dict.fromkeys((*before.links_by_site, *after.links_by_site)):
        old, new = before.links_by_site.get(name, ()), after.links_by_site.get(name, ())
        if old is not new:
            lost += old
            added += new
    if before.links_between is not after.links_between:
        lost += before.links_between
        added += after.links_between
    return lost, added


def _replace_peers(before: Topology, lost: list[Link], added: list[Link]) -> dict[Any, Any]:
    peers = dict(before.peers)
    for link in lost:
        for end in link.ends:
            peers.pop(end, None)
    for link in added:
        peers |= {link.a: link.b, link.b: link.a}
    return peers
