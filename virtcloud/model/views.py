"""Documents of the HTTP API: SBF's answers, and the reports of agents and batch servers."""

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
"""Text that is not blank and has no control characters: PostgreSQL stores no NUL, a terminal interprets ESC."""


def _make_printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


ElementMessage = Annotated[str, BeforeValidator(_make_printable)]
"""An element's message without unprintable characters: it may quote a program or a file name with arbitrary bytes."""


class PlacementProgress(StrEnum):
    """The progress of an element with a cluster."""

    ADDING = "adding"
    CONFIRMED = "confirmed"
    REMOVING = "removing"
    REMOVED = "removed"


class PlacementView(Document):
    """A cluster's part on one element. ``trouble`` is the element's last error about this part.

    ``progress`` is valid as of ``seen_at``: the time of the last reading of a device, or of the last request of an
    agent. An element that is not ``reachable`` may have restarted since then.
    """

    element: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    progress: PlacementProgress
    """The element's progress with the cluster."""
    trouble: str | None = None
    """The error that prevents the element from finishing its part."""
    reachable: bool = True
    """Whether the element is reachable."""
    seen_at: datetime | None = None
    """When the device was last read, or the agent last sent a request."""


class ClusterTransport(Document):
    """The transport that connects a cluster's sites; ``service`` is the S-tag, VPN id or VNI of the cluster."""

    transport: Name
    kind: TransportKind
    """Kind of the transport."""
    service: int | None = None
    """The S-tag, VPN id or VNI of the cluster; null if the transport has no service for single clusters."""


class ClusterView(Document):
    """A cluster as SBF sees it. ``version`` increases with every change of this view, for long polls.

    ``joined`` is the transport that connects the cluster's sites, if there are several. ``quarantined`` is true while
    the cluster's VLAN IDs are withheld because elements have not confirmed its removal. For a member, ``network`` is
    the key of the cluster that it has joined, and ``vlans`` are the VLAN IDs of that network. ``members`` are the
    clusters that have joined this cluster, with their owners: they end with this cluster, and their changes do not
    increase ``version``. ``created_by`` is the caller that requested the cluster, as named in the audit log (a program
    with its role).
    """

    key: ClusterKey
    id: str
    """The id, which no other cluster ever has."""
    attempt: int
    """The attempt that created the cluster."""
    version: int
    """Increases with every change of this view; for long polls."""
    state: ClusterState
    """The state in the lifecycle."""
    reason: str | None = None
    """The reason for the state, if there is one."""
    vlans: dict[Name, VlanId]
    """The VLAN ID at each site."""
    joined: ClusterTransport | None = None
    """The transport that joins the cluster's sites; null for one site."""
    quarantined: bool = False
    """Whether the cluster's VLAN IDs are withheld because an element has not confirmed the removal."""
    lease_ends: datetime
    """When the cluster ends, unless extended."""
    spec: ClusterSpec
    """The requested spec, with the users with whom the network is shared now."""
    placements: tuple[PlacementView, ...] = ()
    """The cluster's part on each element."""
    network: ClusterKey | None = None
    """The key of the cluster whose network this member has joined."""
    members: dict[ClusterKey, UserName] = Field(default_factory=dict)
    """The clusters that have joined this cluster's network, each with its owner."""
    created_by: str | None = None
    """The caller that requested the cluster."""


class ElementView(Document):
    """An element with its two revisions.

    ``carried`` is the observed state of a switch at ``read_at``, per port; ``circuits`` is that of a provider edge. An
    element that is not ``reachable`` may have restarted since then. ``unsaved_since`` is set while a device's running
    configuration may differ from its startup configuration: a restart of the device could restore an older state.
    """

    name: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    wanted_revision: int
    """The revision of the element's wanted state."""
    confirmed_revision: int
    """The latest confirmed revision."""
    trouble: str | None = None
    """The error that prevents the element from reaching its wanted state."""
    reachable: bool = True
    """Whether the element is reachable."""
    last_seen: datetime | None = None
    """When the element last answered."""
    read_at: datetime | None = None
    """When the observed state was read."""
    carried: dict[PortName, VlanSet] | None = None
    """The VLANs that a switch carries on each managed port, as of `read_at`."""
    circuits: tuple[Circuit, ...] | None = None
    """The circuits of a provider edge, as of `read_at`."""
    unsaved_since: datetime | None = None
    """The time from which the running configuration may differ from the startup configuration."""


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
    """A VLAN ID of a pool that SBF does not allocate, because a device of the site uses it for something else.

    ``name`` is the VLAN's name if SBF did not create the VLAN. ``ports`` are the unmanaged ports that carry it. The use
    was first read at ``since`` and last read at ``read_at``. ``cluster`` is the cluster to which the VLAN ID had been
    allocated before.
    """

    vlan: VlanId
    """The VLAN ID."""
    element: Name
    name: str | None = None
    """The name of the VLAN on the device, if SBF did not create the VLAN."""
    ports: tuple[PortName, ...] = ()
    """The unmanaged ports that carry the VLAN."""
    since: datetime
    """When the use was first read."""
    read_at: datetime | None = None
    """When the use was last read."""
    cluster: ClusterKey | None = None
    """The cluster to which the VLAN ID is allocated nevertheless."""


class CleanDeclaration(Document):
    """An administrator's statement that a quarantined VLAN ID is clean. The audit log records it with its reason."""

    reason: Annotated[str, Field(max_length=1000, pattern=STATEMENT_PATTERN)]
    """The reason why the VLAN ID is clean, recorded in the audit log."""


class SiteView(Document):
    """A site: its hosts, and the state of its pool.

    ``quarantine`` lists each withheld VLAN ID and the elements that have not confirmed its removal. ``other_use`` lists
    the VLAN IDs that devices use for something other than SBF's clusters.
    """

    name: Name
    hosts: tuple[Name, ...] = ()
    """Names of the hosts."""
    pool: VlanSet
    claimed: VlanSet
    quarantined: VlanSet
    free: VlanSet
    quarantine: tuple[QuarantinedVlan, ...] = ()
    """The quarantined VLAN IDs."""
    other_use: tuple[VlanInOtherUse, ...] = ()
    """VLAN IDs of the pool that a device uses for something other than SBF's clusters."""


class Confirmation(Document):
    """An element's statement that its state is exactly the wanted state of ``revision``."""

    revision: int
    """The revision of the wanted document."""


class ElementErrorReport(Document):
    """An element's report of the reasons why it cannot reach the wanted state of ``revision``.

    ``clusters`` maps cluster ids to errors that concern single clusters and not the element as a whole. The cluster's
    owner can read these errors. ``refused`` maps cluster ids to reasons: the element has refused these clusters
    repeatedly, and they fail without waiting for their deadlines.
    """

    revision: int
    """The revision of the wanted document."""
    message: ElementMessage
    """The error of the element as a whole."""
    clusters: dict[str, ElementMessage] = Field(default_factory=dict)
    """The errors of single clusters, by their ids."""
    refused: dict[str, ElementMessage] = Field(default_factory=dict)
    """Clusters that the element refuses permanently, by their ids, each with the reason."""


class Problem(Document):
    """An error answer (RFC 9457); ``type`` is stable: ``urn:virtcloud:problem:<slug>``."""

    type: str
    """The kind of problem."""
    title: str
    """The text of the status code."""
    status: int
    """The status code."""
    detail: str
    """The expectation, the observation and the remedy."""


class JobStatement(Document):
    """A batch server's statement about a job: its owner, its hosts, and the network that the job requested to join.

    ``runs`` is false if the server does not run the job, or the job requested no cluster; ``words`` is the reason.
    """

    runs: bool
    """Whether the server runs the job and the job requested a cluster."""
    owner: UserName | None = Field(None, description="The user under whose account the job runs.")
    hosts: tuple[Name, ...] = Field((), description="The job's hosts, by their names in SBF.")
    network: ClusterKey | None = Field(None, description="The network that the job requested to join.")
    words: Annotated[ElementMessage, Field(max_length=1000)] = Field("", description="The job's state, for users.")
