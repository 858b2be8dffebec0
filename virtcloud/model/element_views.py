"""Documents of the HTTP API: SBF's answers about elements, sites and pools, and administrators' statements."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.document import OMIT_EMPTY, Document
from virtcloud.model.edge import Circuit
from virtcloud.model.element import ElementKind
from virtcloud.model.message_text import CONTROL_CHARACTERS
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.views import HostCapacity
from virtcloud.model.vlans import VlanSet

STATEMENT_PATTERN = rf"^[^{CONTROL_CHARACTERS}]*[^\s{CONTROL_CHARACTERS}][^{CONTROL_CHARACTERS}]*$"
"""Text that is not blank and has no control characters. PostgreSQL stores no NUL, and a terminal interprets ESC."""


def _check_statement(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("expected a reason, got a blank text: state why the VLAN ID or the element is clean")
    return value


class ElementView(Document):
    """An element: the wanted and the confirmed revision, and the observed state at ``read_at``.

    An element that is not ``reachable`` may have restarted after ``read_at``. If ``unsaved_since`` is set, a restart of
    the device could restore an older configuration.
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
    capacity: HostCapacity | None = None
    """The capacity of a host; null until its agent has reported the capacity."""
    notices: Annotated[tuple[str, ...], OMIT_EMPTY] = ()
    """Faults that do not prevent the wanted state, such as names that a gateway cannot resolve. Lists of elements
    omit this key."""


class Pool(Document):
    """The VLAN IDs that a site provides for virtual clusters."""

    vlans: VlanSet


class QuarantinedVlan(Document):
    """A VLAN ID that SBF withholds because elements have not confirmed the removal of the VLAN ID's former cluster."""

    vlan: VlanId
    """The VLAN ID."""
    cluster: ClusterKey
    cluster_id: str
    """ID of the cluster that had the VLAN ID."""
    since: datetime
    """When the removal of the cluster began."""
    elements: dict[Name, Name]
    """The elements that have not confirmed the removal, each with its site."""


class VlanInOtherUse(Document):
    """A VLAN ID that SBF does not allocate, because a device uses the ID for something other than clusters."""

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
    """The key of the cluster to which SBF had allocated the VLAN ID before SBF observed the other use."""


class CleanDeclaration(Document):
    """An administrator's recorded statement that a quarantined VLAN ID or an element is clean."""

    reason: Annotated[str, BeforeValidator(_check_statement), Field(max_length=1000, pattern=STATEMENT_PATTERN)]
    """The reason for the statement. The audit log contains the reason."""


class SiteView(Document):
    """A site: its hosts, and the state of its pool."""

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
