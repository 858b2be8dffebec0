"""The documents that SBF answers with and that agents send; each is one schema of the HTTP API.

What a batch system's server says of a job, for a host that wants to begin it.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.document import Document
from virtcloud.model.edge import Circuit
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import printable
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import ClusterKey, Name, PortName, UserName, VlanId
from virtcloud.model.vlans import VlanSet

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
STATEMENT_PATTERN = rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$"
"""Words that are not blank, without control characters: PostgreSQL stores no NUL, and a terminal obeys ESC."""


def _make_printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


ElementMessage = Annotated[str, BeforeValidator(_make_printable)]
"""What an element says: it may quote a program or a file name with any bytes."""


class PlacementProgress(StrEnum):
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
    """The kind of element."""
    site: Name
    progress: PlacementProgress
    """How far the element is with the cluster."""
    trouble: str | None = None
    """What keeps the element from finishing its part."""
    reachable: bool = True
    """Whether the element answered when it was last asked."""
    seen_at: datetime | None = None
    """When the element was last read, or its agent last asked."""


class ClusterTransport(Document):
    """What joins a cluster's sites: ``service`` is the S-tag, VPN id or VNI that carries it there."""

    transport: Name
    kind: TransportKind
    """Kind of the transport."""
    service: int | None = None
    """The S-tag, VPN id or VNI of the cluster; null where the transport has none of its own."""


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
    """The id, which no other cluster ever has."""
    attempt: int
    """The attempt with which it was created."""
    version: int
    """Grows with every change of this view; for long polls."""
    state: ClusterState
    """Where the cluster is in its lifecycle."""
    reason: str | None = None
    """Why it is in this state, where there is more to say."""
    vlans: dict[Name, VlanId]
    """The VLAN ID at each site."""
    joined: ClusterTransport | None = None
    """What joins the cluster's sites; null for one site."""
    quarantined: bool = False
    """Whether its VLAN IDs are kept back because an element has not confirmed the removal."""
    lease_ends: datetime
    """When the cluster ends unless extended."""
    spec: ClusterSpec
    """What was asked for, with those whom the network is shared with now."""
    placements: tuple[PlacementView, ...] = ()
    """The cluster's part on each element."""
    network: ClusterKey | None = None
    """The key of the cluster whose network this member has joined."""
    members: dict[ClusterKey, UserName] = Field(default_factory=dict)
    """The clusters that have joined this one's network, each with its owner."""
    created_by: str | None = None
    """Who asked for the cluster."""


class ElementView(Document):
    """An element with its two revisions.

    ``carried`` is what a switch was seen to carry at ``read_at``, per port, ``circuits`` what a provider edge was. An
    element that is not ``reachable`` may have restarted since.
    ``unsaved_since`` is set while the running configuration of a device may not be its startup configuration: a restart
    could then bring back what it carried before.
    """

    name: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    wanted_revision: int
    """The revision of its wanted state."""
    confirmed_revision: int
    """The latest revision that was read back."""
    trouble: str | None = None
    """What keeps the element from its wanted state."""
    reachable: bool = True
    """Whether the element answered when it was last asked."""
    last_seen: datetime | None = None
    """When the element last answered."""
    read_at: datetime | None = None
    """When the observed state was read."""
    carried: dict[PortName, VlanSet] | None = None
    """The VLANs that a switch carries on each managed port, as of `read_at`."""
    circuits: tuple[Circuit, ...] | None = None
    """The circuits of a provider edge, as of `read_at`."""
    unsaved_since: datetime | None = None
    """Since when the running configuration may differ from the startup configuration."""


class Pool(Document):
    """The VLAN numbers that a site gives to virtual clusters."""

    vlans: VlanSet


class QuarantinedVlan(Document):
    """A number that is kept back: for which ended cluster, since its removal began when, and because of which elements.

    ``elements`` are those that have not confirmed the removal, with their sites.
    """

    vlan: VlanId
    """The VLAN ID."""
    cluster: ClusterKey
    cluster_id: str
    """Id of the cluster that had the VLAN ID."""
    since: datetime
    """When the removal of the cluster began."""
    elements: dict[Name, Name]
    """The elements that have not confirmed the removal, each with its site."""


class VlanInOtherUse(Document):
    """A VLAN ID of a pool that a device of the site uses for somebody else: no new cluster gets it.

    ``name`` is the VLAN's name where SBF did not create it, ``ports`` are the unmanaged ports that carry it. The use
    was first read at ``since`` and was there still at ``read_at``. ``cluster`` has the ID all the same: it got it
    before.
    """

    vlan: VlanId
    """The VLAN ID."""
    element: Name
    name: str | None = None
    """The name of the VLAN on the device, where SBF did not create it."""
    ports: tuple[PortName, ...] = ()
    """The unmanaged ports that carry it."""
    since: datetime
    """When the use was first read."""
    read_at: datetime | None = None
    """When the use was last read."""
    cluster: ClusterKey | None = None
    """The cluster that has the VLAN ID all the same."""


class CleanDeclaration(Document):
    """An administrator says, with a reason that is kept as its name is, that a number in quarantine is clean."""

    reason: Annotated[str, Field(max_length=1000, pattern=STATEMENT_PATTERN)]
    """Why the VLAN ID is clean; recorded in the audit log."""


class SiteView(Document):
    """A site: its hosts, and the state of its pool.

    ``quarantine`` says of each number who keeps it back, ``other_use`` which devices use a number for somebody else.
    """

    name: Name
    hosts: tuple[Name, ...] = ()
    """Names of the hosts."""
    pool: VlanSet
    claimed: VlanSet
    quarantined: VlanSet
    free: VlanSet
    quarantine: tuple[QuarantinedVlan, ...] = ()
    """The VLAN IDs that are kept back."""
    other_use: tuple[VlanInOtherUse, ...] = ()
    """VLAN IDs of the pool that a device uses for somebody else."""


class Confirmation(Document):
    """An element says that it carries exactly what ``revision`` wants."""

    revision: int
    """The revision of the wanted document."""


class ElementErrorReport(Document):
    """An element says why it cannot carry what ``revision`` wants.

    ``clusters`` has the words about each cluster, by its id, where they are not about the element as a whole: its owner
    is told those. ``refused`` are the ids of clusters that it has refused again and again, each with its words: those
    that are being set up need not wait for their deadline.
    """

    revision: int
    """The revision of the wanted document."""
    message: ElementMessage
    """What is wrong with the element as a whole."""
    clusters: dict[str, ElementMessage] = Field(default_factory=dict)
    """What is wrong with single clusters, by their ids."""
    refused: dict[str, ElementMessage] = Field(default_factory=dict)
    """Clusters that the element refuses for good, by their ids, each with the reason."""


class Problem(Document):
    """An error answer (RFC 9457); ``type`` is stable: ``urn:virtcloud:problem:<slug>``."""

    type: str
    """The kind of problem."""
    title: str
    """The words of the status code."""
    status: int
    """The status code."""
    detail: str
    """What was wanted, what was found, and what to do."""


class JobStatement(Document):
    """A job as its server knows it: whose it is, on which hosts it begins, and which network it asked to join.

    ``runs`` is false for a job that the server does not run, or that asked for no cluster; ``words`` say which.
    """

    runs: bool
    """Whether the server runs the job, and the job asked for a cluster."""
    owner: UserName | None = Field(None, description="The user under whose account the job runs.")
    hosts: tuple[Name, ...] = Field((), description="The job's hosts, by their names in SBF.")
    network: ClusterKey | None = Field(None, description="The network that the job asked to join.")
    words: Annotated[ElementMessage, Field(max_length=1000)] = Field("", description="The job's state, for people.")
