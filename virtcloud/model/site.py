"""One site's part of the topology: what its administrators change without touching other sites.

What a site's devices see of their cables, beside what the topology says: the documents of ``site verify``.

What administrators configure once, before clusters may use a transport: the documents of ``site prepare``.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.element import Device
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Link, Site, Topology
from virtcloud.model.values import Name, PortRef


class SitePart(Document):
    """A site and the links between its own elements. Links to other sites, and transports, are the operators'."""

    site: Site
    """The site."""
    links: tuple[Link, ...] = ()
    """The links between the site's own elements."""


def site_part_of(topology: Topology, name: str) -> SitePart:
    """Return a site's part; raises NotFound."""
    site = topology.site(name)
    return SitePart(site=site, links=tuple(link for link in topology.links if _is_within(link, site)))


def replace_site_part(topology: Topology, part: SitePart) -> Topology:
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


def find_foreign_credentials(topology: Topology, part: SitePart) -> dict[Name, Name]:
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


class CableState(StrEnum):
    """What was found of a cable; ``unknown`` is neither right nor wrong."""

    RIGHT = "right"
    OTHER_NEIGHBOUR = "other-neighbour"
    OTHER_PORT = "other-port"
    ELSEWHERE = "elsewhere"
    UNLISTED = "unlisted"
    UNKNOWN = "unknown"


CABLE_STATES_WITHOUT_FAULT = frozenset({CableState.RIGHT, CableState.UNKNOWN})


class CableView(Document):
    """A cable between two ports and what was found of it, in sentences.

    ``unlisted`` is a cable that was seen and is not in the topology; any other is one of its links.
    """

    a: PortRef
    b: PortRef
    state: CableState
    """Whether the cable is where the topology says."""
    found: tuple[str, ...] = ()
    """What was found, one sentence each."""

    @property
    def is_wrong(self) -> bool:
        """Whether the cable is seen not to be where the topology says."""
        return self.state not in CABLE_STATES_WITHOUT_FAULT


class SiteCables(Document):
    """Every cable of a site, and the switches that could not be asked, each with the reason."""

    site: Name
    at: datetime
    """When the switches were read."""
    cables: tuple[CableView, ...] = ()
    """Every cable of the site."""
    unread: dict[Name, str] = Field(default_factory=dict)
    """Switches that could not be read, each with the reason."""

    @property
    def wrong(self) -> tuple[CableView, ...]:
        """The cables that are seen not to be where the topology says."""
        return tuple(cable for cable in self.cables if cable.is_wrong)


class PreparationSide(StrEnum):
    """Whose administrators a sheet is for."""

    SITE = "site"
    BACKBONE = "backbone"


class PreparationSheet(Document):
    """What to type on one device, once. SBF never does.

    ``to_fill`` are the words in angle brackets among the lines that only the administrators know, with their meanings.
    """

    side: PreparationSide
    """Whose task the sheet is."""
    device: str
    """The device to configure."""
    platform: str
    """The platform whose commands these are."""
    lines: tuple[str, ...] = ()
    """The commands."""
    notes: tuple[str, ...] = ()
    """What to observe."""
    to_fill: dict[str, str] = Field(default_factory=dict)
    """Words in angle brackets among the commands, with their meanings."""


class SitePreparation(Document):
    """All sheets of a site: its own side first, then what the backbone's administrators are given."""

    site: Name
    sheets: tuple[PreparationSheet, ...] = ()
    """The sheets: the site's own first, then the backbone's."""
