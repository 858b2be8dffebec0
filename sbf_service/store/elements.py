"""The wanted state of elements with its revisions, the wanted documents of agents, and the views of elements."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import or_, select

from sbf_service.domain.guest_power import apply_guest_powers, list_cluster_ids
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.store.capacity import make_capacity
from sbf_service.store.cluster_queries import IS_UNSETTLED
from sbf_service.store.confirmations import read_blocked_clusters
from sbf_service.store.element_clusters import read_confirmed_clusters, read_wanted_clusters
from sbf_service.store.gateway_addresses import add_gateway_interfaces
from sbf_service.store.guest_power import read_guest_powers
from sbf_service.store.guest_seeds import add_network_seeds
from sbf_service.store.network_routers import add_network_routers
from sbf_service.store.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.outside_uses import find_name_faults
from sbf_service.store.publications import add_published_ports
from sbf_service.store.revisions import require_element
from sbf_service.store.service_nodes import add_network_services
from sbf_service.store.ssh_grants import add_ssh_access
from sbf_service.store.tables import IS_RECONCILED, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.unchecked_elements import mark_held_segments
from sbf_service.store.unit_of_work import Unit, read_topology
from sbf_service.store.vpn_grants import add_vpn
from virtcloud.model.call_context import MAX_REQUESTS, CallContext
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import Name
from virtcloud.model.views import ElementView
from virtcloud.model.wanted import HostWanted, WantedDocument

_READ_ELEMENTS = select(ElementRow).where(IS_RECONCILED).order_by(ElementRow.name)


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """The wanted state and the revisions of an element, read in one transaction."""

    revision: int
    confirmed: int
    wanted: WantedState


def read_wanted_revision(unit: Unit, name: str) -> WantedRevision:
    """Return the wanted state of an element. Raise NotFound for an unknown element."""
    row = require_element(unit, name)
    wanted = compute_wanted(Name(name), read_topology(unit), read_wanted_clusters(unit, name))
    if isinstance(wanted, HostWanted):
        wanted = apply_guest_powers(wanted, read_guest_powers(unit, list_cluster_ids(wanted)))
    return WantedRevision(row.wanted_revision, row.confirmed_revision, wanted)


def read_unconfirmed_calls(unit: Unit, name: str, confirmed: int) -> tuple[CallContext, ...]:
    """Return the calls that changed clusters on an element since its confirmed revision, at most ``MAX_REQUESTS``."""
    is_new = or_(PlacementRow.added_revision > confirmed, PlacementRow.removed_revision > confirmed)
    rows = (
        select(ClusterRow.request_id, ClusterRow.traceparent)
        .join(PlacementRow, PlacementRow.cluster_id == ClusterRow.id)
        .where(PlacementRow.element == name, IS_UNSETTLED, is_new, ClusterRow.request_id.is_not(None))
        .order_by(ClusterRow.created_at.desc(), ClusterRow.id)
        .limit(MAX_REQUESTS)
    )
    return tuple(
        CallContext(request_id=request, traceparent=trace) for request, trace in unit.session.execute(rows) if request
    )


def read_confirmed_state(unit: Unit, name: str) -> WantedState:
    """Return the confirmed part of an element's wanted state. Raise NotFound for an unknown element."""
    confirmed = require_element(unit, name).confirmed_revision
    return compute_wanted(Name(name), read_topology(unit), read_confirmed_clusters(unit, name, confirmed))


_ADDITIONS = (
    add_vpn,
    add_gateway_interfaces,
    add_network_routers,
    add_network_services,
    add_ssh_access,
    add_published_ports,
    mark_held_segments,
)


def make_wanted_document(unit: Unit, name: str) -> WantedDocument:
    """Return the wanted state of a host or gateway for its agent, with the seeds of its guests, or its VPN servers.

    For an agent that was stale, the confirmed revision in the document is 0, so that the agent reads its host again.
    Raise NotFound for an unknown element. Raise Conflict for a device.
    """
    read, row = read_wanted_revision(unit, name), require_element(unit, name)
    if not isinstance(read.wanted, HostWanted):
        raise Conflict(f"{row.kind} {name} has no agent: SBF configures it")
    wanted = add_network_seeds(unit, read.wanted)
    for add in _ADDITIONS:
        wanted = add(unit, name, wanted)
    return WantedDocument(
        element=Name(name),
        revision=read.revision,
        confirmed_revision=read.confirmed if row.reachable else 0,
        incomplete=read_blocked_clusters(unit, name),
        calls=read_unconfirmed_calls(unit, name, read.confirmed),
        wanted=wanted,
    )


def make_element_views(unit: Unit, sites: Collection[str] | None = None) -> list[ElementView]:
    """Return the views of all elements, or of the elements at some sites, in the order of their names."""
    statement = _READ_ELEMENTS if sites is None else _READ_ELEMENTS.where(ElementRow.site.in_(sites))
    return [_format_element(row) for row in unit.session.scalars(statement)]


def make_element_view(unit: Unit, name: str) -> ElementView:
    """Return the view of an element. Raise NotFound for an unknown element."""
    view = _format_element(require_element(unit, name))
    return view.model_copy(update={"notices": find_name_faults(unit, name)})


def _format_element(row: ElementRow) -> ElementView:
    return ElementView(
        name=Name(row.name),
        kind=ElementKind(row.kind),
        site=Name(row.site),
        wanted_revision=row.wanted_revision,
        confirmed_revision=row.confirmed_revision,
        trouble=row.trouble,
        reachable=row.reachable,
        last_seen=row.last_seen,
        read_at=row.carried_at,
        carried=parse_observed_ports(row),
        circuits=parse_observed_circuits(row),
        unsaved_since=row.unsaved_since,
        capacity=make_capacity(row),
    )
