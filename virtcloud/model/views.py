"""Documents of the HTTP API: SBF's answers about clusters, and the reports of agents and batch servers."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.element import ElementKind
from virtcloud.model.message_text import printable
from virtcloud.model.nfs import FileMount
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId


def _make_printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


ElementMessage = Annotated[str, BeforeValidator(_make_printable)]
"""An element's message. U+FFFD replaces unprintable characters, because messages may quote arbitrary bytes."""


Revision = Annotated[int, Field(ge=0, lt=1 << 31)]
"""The revision of an element's wanted document: a 32-bit integer in the database."""


class PlacementProgress(StrEnum):
    """How far an element has set up (``adding``, ``confirmed``) or removed a cluster (``removing``, ``removed``)."""

    ADDING = "adding"
    CONFIRMED = "confirmed"
    REMOVING = "removing"
    REMOVED = "removed"


class PlacementView(Document):
    """A cluster on one element: the element's progress and its error.

    ``progress`` was observed at ``seen_at``. An element that is not ``reachable`` may have restarted after ``seen_at``.
    """

    element: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    progress: PlacementProgress
    """The element's progress with the cluster."""
    trouble: str | None = None
    """The error that prevents the element from setting up or removing the cluster."""
    reachable: bool = True
    """Whether the element is reachable."""
    seen_at: datetime | None = None
    """When the device was last read, or the agent last sent a request."""


class ClusterTransport(Document):
    """The transport that connects a cluster's sites."""

    transport: Name
    kind: TransportKind
    """Kind of the transport."""
    service: int | None = None
    """The S-tag, VPN id or VNI of the service that carries the cluster; null if the transport has no service IDs."""
    mtu: int | None = None
    """The MTU of the cluster in bytes; null: the MTU of each host's port applies."""


class ClusterView(Document):
    """The state of a cluster.

    If the cluster has joined another cluster's network, ``vlans`` are the VLAN IDs of this network. When a cluster
    ends, the clusters that have joined its network (``members``) end too.
    """

    key: ClusterKey
    id: str
    """The ID of the cluster. SBF never uses an ID again."""
    attempt: int
    """The attempt that created the cluster."""
    version: int
    """The version of this view, for long polls.

    SBF increases the version when the view changes, but not when only ``members``, ``stopped_guests`` or a time
    ``seen_at`` changes.
    """
    state: ClusterState
    """The state in the lifecycle."""
    reason: str | None = None
    """The reason for the state, or what does not work in an active cluster; null if there is no reason."""
    vlans: dict[Name, VlanId]
    """The VLAN ID at each site."""
    joined: ClusterTransport | None = None
    """The transport that connects the cluster's sites; null for a cluster at one site."""
    quarantined: bool = False
    """Whether the cluster's VLAN IDs are withheld because an element has not confirmed the removal."""
    lease_ends: datetime
    """When the cluster ends, unless the lease is extended."""
    spec: ClusterSpec
    """The requested spec; ``shares_with`` lists the users who may join the network now."""
    placements: tuple[PlacementView, ...] = ()
    """The cluster's placements: one for each element of its path."""
    network: ClusterKey | None = None
    """The key of the cluster whose network this cluster has joined; null: the cluster has its own network."""
    members: dict[ClusterKey, UserName] = Field(default_factory=dict)
    """The clusters that have joined this cluster's network, each with its owner."""
    created_by: str | None = None
    """The caller that requested the cluster, such as ``alice`` or ``scheduler@pbssrv``."""
    stopped_guests: tuple[Name, ...] = ()
    """The guests that a user stopped. A job's start does not wait for these guests."""
    mounts: Annotated[tuple[FileMount, ...], OMIT_EMPTY] = ()
    """The folders that guests can mount, if the cluster asked for the service `nfs`. Only the answer to `get_cluster`
    contains the folders.
    """
    other_addresses: Annotated[tuple[str, ...], OMIT_EMPTY] = ()
    """The addresses of gateways, of users' devices and of the router in the network that this cluster created, without
    prefix length. Only the answer to `list_clusters` with `network` contains the addresses.
    """


MAX_HOST_IMAGES: Final = 1000


class HostCapacity(Document):
    """The capacity of a host, reported by its agent."""

    cpus: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of processors."""
    memory_mb: Annotated[int, Field(ge=1, le=2**40)]
    """Memory in MiB."""
    images: Annotated[tuple[Name, ...], OMIT_EMPTY, Field(max_length=MAX_HOST_IMAGES)] = ()
    """Names of the images in the host's folder of images. Users cannot add images with these names to the catalogue."""


class Confirmation(Document):
    """An element's statement that its state is exactly the wanted state of ``revision``, with two exceptions.

    The exceptions are the wanted clusters in ``incomplete`` and the unwanted clusters in ``remaining``.
    """

    revision: Revision
    """The revision of the wanted document."""
    incomplete: dict[str, ElementMessage] | None = None
    """Why each cluster is not set up completely, by cluster ID. All other wanted clusters are complete."""
    only_guests: Annotated[tuple[str, ...] | None, OMIT_NONE] = None
    """IDs of clusters in ``incomplete`` whose networks work, so that other clusters can use these networks."""
    unstopped_guests: Annotated[dict[str, tuple[Name, ...]] | None, OMIT_NONE] = None
    """The guests that have the power `off` but that the element could not stop, by the ID of their cluster. The cluster
    is in ``incomplete``.
    """
    remaining: Annotated[dict[str, ElementMessage] | None, OMIT_NONE] = None
    """Why the element could not remove a cluster, by cluster ID. All other unwanted clusters are removed.

    A cluster may leave a network that stays on the host. If the guests of this cluster cannot be stopped, the key is
    the network's ID. SBF then regards no cluster that leaves this network as removed from the element.
    """


class ElementErrorReport(Document):
    """An element's report of the reasons why it cannot reach the wanted state of ``revision``.

    The owner of a cluster can read the cluster's error in ``clusters``. ``refused`` contains the clusters that the
    element has refused several times in a row. A refused cluster that is still being set up fails immediately, before
    its deadline.
    """

    revision: Revision
    """The revision of the wanted document."""
    message: ElementMessage
    """The error of the element as a whole."""
    clusters: dict[str, ElementMessage] = Field(default_factory=dict)
    """The errors that each concern one cluster, by cluster ID."""
    refused: dict[str, ElementMessage] = Field(default_factory=dict)
    """Clusters that the element has refused several times in a row, by cluster ID, each with the reason."""


class Problem(Document):
    """An error answer (RFC 9457); ``type`` is stable: ``urn:virtcloud:problem:<slug>``."""

    type: str
    """The kind of problem."""
    title: str
    """The standard text of the HTTP status code."""
    status: int
    """The HTTP status code."""
    detail: str
    """The expectation, the observation and the remedy."""


class JobStatement(Document):
    """A batch server's statement about a job. If ``runs`` is false, ``words`` contains the reason."""

    runs: bool
    """Whether the server runs the job and the job requested a cluster."""
    owner: UserName | None = Field(None, description="The user under whose account the job runs.")
    hosts: tuple[Name, ...] = Field((), description="The job's hosts, by their names in SBF.")
    network: ClusterKey | None = Field(None, description="The network that the job requested to join.")
    words: Annotated[ElementMessage, Field(max_length=1000)] = Field("", description="The job's state, for users.")
