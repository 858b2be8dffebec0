"""Documents about one site: its part of the topology, the check of its cables, and the preparation of its devices."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.element import Device
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.values import Name, PortRef


class SitePart(Document):
    """A site and the links between its elements.

    The document contains neither transports nor links to other sites, which only operators may change.
    """

    site: Site
    """The site."""
    links: tuple[Link, ...] = ()
    """The links between the site's elements."""


def site_part_of(topology: Topology, name: str) -> SitePart:
    """Return a site's part of the topology. Raise NotFound for an unknown site."""
    site = topology.site(name)
    return SitePart(site=site, links=topology.links_by_site.get(site.name, ()))


def find_foreign_credentials(topology: Topology, part: SitePart) -> dict[Name, Name]:
    """Return the credentials in ``part`` that may belong to other sites, by device name.

    SBF sends a device's credential to the device's address, so a device could obtain the credential of another site.
    Therefore SBF checks each device in ``part`` that is new or has a new address, credential or platform. A new
    platform is checked because platforms verify devices in different ways: by SSH host key, by certificate, or not at
    all. The credential of a checked device belongs to the device's site if, in ``topology``, this site's devices use
    the credential and no other devices do. Otherwise, the result contains the credential. Raise NotFound if the
    topology does not contain the site.
    """
    former = {device.name: device for device in topology.site(part.site.name).devices}
    others = {device.credential for site in topology.sites if site.name != part.site.name for device in site.devices}
    allowed = {device.credential for device in former.values()} - others
    foreign = {}
    for device in part.site.devices:
        before = former.get(device.name)
        is_same = before is not None and _login_of(before) == _login_of(device)
        if device.credential is not None and not is_same and device.credential not in allowed:
            foreign[device.name] = device.credential
    return foreign


def _login_of(device: Device) -> tuple[object, ...]:
    return type(device), device.address, device.credential, device.platform


class CableState(StrEnum):
    """The result of a cable's check. ``unknown``: SBF observed too little, for example because a reading failed."""

    RIGHT = "right"
    OTHER_NEIGHBOUR = "other-neighbour"
    OTHER_PORT = "other-port"
    ELSEWHERE = "elsewhere"
    UNLISTED = "unlisted"
    UNKNOWN = "unknown"


CABLE_STATES_WITHOUT_FAULT = frozenset({CableState.RIGHT, CableState.UNKNOWN})


class CableView(Document):
    """A cable between two ports, and the result of its check.

    A cable in the state ``unlisted`` was observed but is not in the topology. Every other cable is a link of the
    topology.
    """

    a: PortRef
    b: PortRef
    state: CableState
    """The result of the check."""
    found: tuple[str, ...] = ()
    """The observations, one sentence each."""

    @property
    def is_wrong(self) -> bool:
        """Whether the observed cable contradicts the topology."""
        return self.state not in CABLE_STATES_WITHOUT_FAULT


class SiteCables(Document):
    """Every cable of a site, and the switches that could not be read, each with the reason."""

    site: Name
    at: datetime
    """When the switches were read."""
    cables: tuple[CableView, ...] = ()
    """Every cable of the site."""
    unread: dict[Name, str] = Field(default_factory=dict)
    """Switches that could not be read, each with the reason."""

    @property
    def wrong(self) -> tuple[CableView, ...]:
        """The observed cables that contradict the topology."""
        return tuple(cable for cable in self.cables if cable.is_wrong)


class PreparationSide(StrEnum):
    """The administrators who use a sheet: the site's administrators or the backbone's administrators."""

    SITE = "site"
    BACKBONE = "backbone"


class PreparationSheet(Document):
    """The commands that administrators enter once on one device. SBF never enters these commands.

    Administrators replace each placeholder in angle brackets with the placeholder's value.
    """

    side: PreparationSide
    """The administrators who enter the commands."""
    device: str
    """The device to configure."""
    platform: str
    """The platform to which the commands belong."""
    lines: tuple[str, ...] = ()
    """The commands."""
    notes: tuple[str, ...] = ()
    """Notes for the administrators about the commands."""
    to_fill: dict[str, str] = Field(default_factory=dict)
    """The placeholders in the commands, with their meanings."""


class SitePreparation(Document):
    """All sheets of a site."""

    site: Name
    sheets: tuple[PreparationSheet, ...] = ()
    """The sheets: first for the site's administrators, then for the backbone's administrators."""
