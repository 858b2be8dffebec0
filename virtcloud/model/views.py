"""The documents that SBF answers with and that agents send; each is one schema of the HTTP API."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.cluster import ClusterSpec, State
from virtcloud.model.document import Document
from virtcloud.model.edge import Circuit
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import printable
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import ClusterKey, Name, PortName, UserName, VlanId
from virtcloud.model.vlans import VlanSet

SAID = r"^[^\x00]*[^\s\x00][^\x00]*$"
"""Words that are not blank, and that a database takes: PostgreSQL keeps no NUL in a text."""


def _printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


ElementWords = Annotated[str, BeforeValidator(_printable)]
"""What an element says: it may quote a program or a file name with any bytes."""


class Progress(StrEnum):
    """How far an element is with a cluster."""

    ADDING = "adding"
    CONFIRMED = "confirmed"
    REMOVING = "removing"
    REMOVED = "removed"


class PlacementView(Document):
    """One element's part of a cluster; ``trouble`` is what the element last said went wrong with it.

    ``progress`` holds as of ``seen_at``: when a device was last read, or an agent last heard. An element that is not
    ``reachable`` may have restarted since.
    """

    element: Name
    kind: ElementKind
    site: Name
    progress: Progress
    trouble: str | None = None
    reachable: bool = True
    seen_at: datetime | None = None


class Joined(Document):
    """What joins a cluster's sites: ``service`` is the S-tag, VPN id or VNI that carries it there."""

    transport: Name
    kind: TransportKind
    service: int | None = None


class ClusterView(Document):
    """A cluster as SBF sees it. ``version`` grows with every change of this view, for long polls.

    ``joined`` is what joins its sites, where it has several. ``quarantined`` says that its numbers are kept back until
    elements that did not confirm its removal do. ``network`` is the key of the cluster that a member has joined, whose
    numbers are shown. ``members`` are the clusters that have joined this one's network, with their owners: they end
    with it; ``version`` does not grow with them. ``created_by`` is who asked for it, as the audit log has it (a machine
    with its role).
    """

    key: ClusterKey
    id: str
    attempt: int
    version: int
    state: State
    reason: str | None = None
    vlans: dict[Name, VlanId]
    joined: Joined | None = None
    quarantined: bool = False
    lease_ends: datetime
    spec: ClusterSpec
    placements: tuple[PlacementView, ...] = ()
    network: ClusterKey | None = None
    members: dict[ClusterKey, UserName] = Field(default_factory=dict)
    created_by: str | None = None


class ElementView(Document):
    """An element with its two revisions.

    ``carried`` is what a switch was seen to carry at ``read_at``, per port, ``circuits`` what a provider edge was. An
    element that is not ``reachable`` may have restarted since.
    ``unsaved_since`` is set while the running configuration of a device may not be its startup configuration: a restart
    could then bring back what it carried before.
    """

    name: Name
    kind: ElementKind
    site: Name
    wanted_revision: int
    confirmed_revision: int
    trouble: str | None = None
    reachable: bool = True
    last_seen: datetime | None = None
    read_at: datetime | None = None
    carried: dict[PortName, VlanSet] | None = None
    circuits: tuple[Circuit, ...] | None = None
    unsaved_since: datetime | None = None


class Pool(Document):
    """The VLAN numbers that a site gives to virtual clusters."""

    vlans: VlanSet


class Quarantine(Document):
    """A number that is kept back: for which ended cluster, since its removal began when, and because of which elements.

    ``elements`` are those that have not confirmed the removal, with their sites.
    """

    vlan: VlanId
    cluster: ClusterKey
    cluster_id: str
    since: datetime
    elements: dict[Name, Name]


class VlanInOtherUse(Document):
    """A VLAN ID of a pool that a device of the site uses for somebody else: no new cluster gets it.

    ``name`` is the VLAN's name where SBF did not create it, ``ports`` are the unmanaged ports that carry it. The use
    was first read at ``since`` and was there still at ``read_at``. ``cluster`` has the ID all the same: it got it
    before.
    """

    vlan: VlanId
    element: Name
    name: str | None = None
    ports: tuple[PortName, ...] = ()
    since: datetime
    read_at: datetime | None = None
    cluster: ClusterKey | None = None


class CleanWord(Document):
    """An administrator says, with a reason that is kept as its name is, that a number in quarantine is clean."""

    reason: Annotated[str, Field(max_length=1000, pattern=SAID)]


class SiteView(Document):
    """A site: its hosts, and the state of its pool.

    ``quarantine`` says of each number who keeps it back, ``other_use`` which devices use a number for somebody else.
    """

    name: Name
    hosts: tuple[Name, ...] = ()
    pool: VlanSet
    claimed: VlanSet
    quarantined: VlanSet
    free: VlanSet
    quarantine: tuple[Quarantine, ...] = ()
    other_use: tuple[VlanInOtherUse, ...] = ()


class Confirmation(Document):
    """An element says that it carries exactly what ``revision`` wants."""

    revision: int


class Trouble(Document):
    """An element says why it cannot carry what ``revision`` wants.

    ``clusters`` has the words about each cluster, by its id, where they are not about the element as a whole: its owner
    is told those. ``refused`` are the ids of clusters that it has refused again and again, each with its words: those
    that are being set up need not wait for their deadline.
    """

    revision: int
    message: ElementWords
    clusters: dict[str, ElementWords] = Field(default_factory=dict)
    refused: dict[str, ElementWords] = Field(default_factory=dict)


class Problem(Document):
    """An error answer (RFC 9457); ``type`` is stable: ``urn:virtcloud:problem:<slug>``."""

    type: str
    title: str
    status: int
    detail: str
