"""Documents of the HTTP API: the answers of SBF, and the reports of agents and batch servers."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.document import Document
from virtcloud.model.edge import Circuit
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import CONTROL_CHARACTERS, printable
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import ClusterKey, Name, PortName, UserName, VlanId
from virtcloud.model.vlans import VlanSet

STATEMENT_PATTERN = rf"^[^{CONTROL_CHARACTERS}]*[^\s{CONTROL_CHARACTERS}][^{CONTROL_CHARACTERS}]*$"
"""Text that is not blank and has no control characters: PostgreSQL stores no NUL, and a terminal obeys ESC."""


def _make_printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


ElementMessage = Annotated[str, BeforeValidator(_make_printable)]
"""A message of an element, made printable: it may quote a program or a file name with any bytes."""


class PlacementProgress(StrEnum):
    """The progress of an element with a cluster."""

    ADDING = "adding"
    CONFIRMED = "confirmed"
    REMOVING = "removing"
    REMOVED = "removed"


class PlacementView(Document):
    """A cluster's part on one element; ``trouble`` is the element's last error about it.

    ``progress`` is valid as of ``seen_at``: when a device was last read, or an agent last answered. An element that is
    not ``reachable`` may have restarted since.
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
    """The transport that connects a cluster's sites; ``service`` is the S-tag, VPN id or VNI of the cluster."""

    transport: Name
    kind: TransportKind
    """Kind of the transport."""
    service: int | None = None
    """The S-tag, VPN id or VNI of the cluster; null where the transport has none of its own."""


class ClusterView(Document):
    """A cluster as SBF sees it. ``version`` increases with every change of this view, for long polls.

    ``joined`` is the transport that connects the cluster's sites, if it has several. ``quarantined`` is set while its
    VLAN IDs are withheld because elements have not confirmed its removal. For a member, ``network`` is the key of the
    cluster that it has joined, and ``vlans`` are the VLAN IDs of that network. ``members`` are the clusters that have
    joined this one, with their owners: they end with this cluster, and ``version`` does not increase with them.
    ``created_by`` is the caller that requested the cluster, as the audit log names it (a machine with its role).
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

    ``carried`` is the observed state of a switch at ``read_at``, per port; ``circuits`` is that of a provider edge. An
    element that is not ``reachable`` may have restarted since. ``unsaved_since`` is set while a device's running
    configuration may differ from its startup configuration: a restart could then restore an older state.
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
    """The VLAN IDs that a site provides for virtual clusters."""

    vlans: VlanSet


class QuarantinedVlan(Document):
    """A withheld VLAN ID: its former cluster, the start of the removal, and the elements that have not confirmed it.

    ``elements`` maps the elements that have not confirmed the removal to their sites.
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
    """A VLAN ID of a pool that a device of the site uses for somebody other than SBF: no new cluster gets it.

    ``name`` is the VLAN's name if SBF did not create the VLAN. ``ports`` are the unmanaged ports that carry it. The use
    was first read at ``since`` and last read at ``read_at``. ``cluster`` is the cluster that had been allocated the
    VLAN ID before.
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
    """An administrator's statement that a quarantined VLAN ID is clean, recorded with its reason."""

    reason: Annotated[str, Field(max_length=1000, pattern=STATEMENT_PATTERN)]
    """Why the VLAN ID is clean; recorded in the audit log."""


class SiteView(Document):
    """A site: its hosts, and the state of its pool.

    ``quarantine`` lists the elements that block each withheld VLAN ID. ``other_use`` lists the devices that use a VLAN
    ID for somebody other than SBF.
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
    """An element's statement that it carries exactly the wanted state of ``revision``."""

    revision: int
    """The revision of the wanted document."""


class ElementErrorReport(Document):
    """An element's report why it cannot carry the wanted state of ``revision``.

    ``clusters`` maps cluster ids to errors that concern single clusters and not the element as a whole; the cluster's
    owner is shown these. ``refused`` maps the ids of clusters that the element has refused repeatedly to the reason:
    such a cluster fails without waiting for its deadline.
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
    """A batch server's statement about a job: its owner, its hosts, and the network that it asked to join.

    ``runs`` is false if the server does not run the job, or the job asked for no cluster; ``words`` is the reason.
    """

    runs: bool
    """Whether the server runs the job, and the job asked for a cluster."""
    owner: UserName | None = Field(None, description="The user under whose account the job runs.")
    hosts: tuple[Name, ...] = Field((), description="The job's hosts, by their names in SBF.")
    network: ClusterKey | None = Field(None, description="The network that the job asked to join.")
    words: Annotated[ElementMessage, Field(max_length=1000)] = Field("", description="The job's state, for people.")
