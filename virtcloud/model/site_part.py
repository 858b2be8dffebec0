"""One site's part of the topology: what its administrators change without touching other sites."""

from virtcloud.model.document import Document
from virtcloud.model.element import Device
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Link, Site, Topology
from virtcloud.model.values import Name


class SitePart(Document):
    """A site and the links between its own elements. Links to other sites, and transports, are the operators'."""

    site: Site
    """The site."""
    links: tuple[Link, ...] = ()
    """The links between the site's own elements."""


def part_of(topology: Topology, name: str) -> SitePart:
    """Return a site's part; raises NotFound."""
    site = topology.site(name)
    return SitePart(site=site, links=tuple(link for link in topology.links if _is_within(link, site)))


def with_part(topology: Topology, part: SitePart) -> Topology:
    """Return the topology with a site's part replaced.

    Raises NotFound for an unknown site, BadInput for a link to another site, ValidationError for what is impossible.
    """
    former = topology.site(part.site.name)
    for index, link in enumerate(part.links):
        if not _is_within(link, part.site):
            raise BadInput(
                f"link {link.a} to {link.b}: expected two elements of site {part.site.name}; links to other sites are "
                "changed with the whole topology",
                ("links", index),
            )
    kept = tuple(link for link in topology.links if not _is_within(link, former))
    sites = tuple(part.site if site.name == former.name else site for site in topology.sites)
    whole = {"name": topology.name, "transports": topology.transports, "sites": sites, "links": (*kept, *part.links)}
    return Topology.model_validate(whole)


def foreign_credentials(topology: Topology, part: SitePart) -> dict[Name, Name]:
    """Return the devices of a part, with their credentials, that could carry a secret to where it does not belong.

    SBF shows a credential to the address that a device names. A device that is new, or whose address, credential or
    platform is, may name a credential that this site's devices had before, and that no other site's device has. The
    platform counts because platforms verify a device differently: by SSH host key, by certificate, or not at all.
    """
    former = {device.name: device for device in topology.site(part.site.name).devices}
    others = {device.credential for site in topology.sites if site.name != part.site.name for device in site.devices}
    own = {device.credential for device in former.values()} - others
    found = {}
    for device in part.site.devices:
        before = former.get(device.name)
        is_same = before is not None and _login_of(before) == _login_of(device)
        if device.credential is not None and not is_same and device.credential not in own:
            found[device.name] = device.credential
    return found


def _login_of(device: Device) -> tuple[object, ...]:
    return type(device), device.address, device.credential, device.platform


def _is_within(link: Link, site: Site) -> bool:
    names = {element.name for element in site.elements}
    return all(end.element in names for end in link.ends)
