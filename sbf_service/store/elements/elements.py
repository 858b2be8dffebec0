"""The wanted states and documents of elements, and the views of elements."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, and_, bindparam, false, func, or_, select

from sbf_service.domain.guest_power import apply_guest_powers, list_cluster_ids
from sbf_service.domain.page_cursors import KEY_OF_NAME, CursorFormat
from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.store.access.ssh_grants import add_ssh_access
from sbf_service.store.access.vpn_grants import add_vpn
from sbf_service.store.clusters.capacity import make_capacity
from sbf_service.store.clusters.cluster_queries import IS_UNSETTLED
from sbf_service.store.clusters.guest_power import read_guest_powers
from sbf_service.store.clusters.guest_seeds import add_network_seeds
from sbf_service.store.elements.confirmations import read_blocked_clusters
from sbf_service.store.elements.element_clusters import find_confirmed_clusters, read_wanted_clusters
from sbf_service.store.elements.observed_state import parse_observed_circuits, parse_observed_ports
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.elements.unchecked_elements import mark_held_segments
from sbf_service.store.networks.gateway_addresses import add_gateway_interfaces
from sbf_service.store.networks.network_routers import add_network_routers
from sbf_service.store.networks.outside_uses import find_name_faults
from sbf_service.store.networks.publications import add_published_ports
from sbf_service.store.networks.service_nodes import add_network_services
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import equals_any, split_ids
from sbf_service.store.tables.tables import IS_RECONCILED, ElementRow, SiteRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.call_context import MAX_REQUESTS, CallContext
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView
from virtcloud.model.errors import Conflict
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted, WantedDocument

_READ_ELEMENTS = select(ElementRow).where(IS_RECONCILED).order_by(ElementRow.name)
BY_NAME: Final = PageOrder(CursorFormat("elements", KEY_OF_NAME), (ElementRow.name,))
HAS_TROUBLE: Final = or_(
    ElementRow.reachable == false(),
    ElementRow.trouble.is_not(None),
    ElementRow.unsaved_since.is_not(None),
    and_(~equals_any(ElementRow.kind, DEVICE_KINDS), ElementRow.last_seen.is_(None)),
)
"""The condition that an element needs attention: the element does not answer, has an error report or a pending save, or
its agent never called SBF.
"""


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """The wanted state, the wanted clusters and the revisions of an element, read in one transaction."""

    revision: int
    confirmed: int
    wanted: WantedState
    clusters: Sequence[LiveCluster]


def read_wanted_revision(unit: Unit, name: str) -> WantedRevision:
    """Return the wanted state of an element. Raise NotFound for an unknown element."""
    row = require_element(unit, name)
    clusters = read_wanted_clusters(unit, name)
    wanted = compute_wanted(Name(name), read_topology(unit), clusters)
    if isinstance(wanted, HostWanted):
        wanted = apply_guest_powers(wanted, read_guest_powers(unit, list_cluster_ids(wanted)))
    return WantedRevision(row.wanted_revision, row.confirmed_revision, wanted, clusters)


_READ_UNCONFIRMED_CALLS = (
    select(ClusterRow.request_id, ClusterRow.traceparent)
    .join(PlacementRow, PlacementRow.cluster_id == ClusterRow.id)
    .where(
        PlacementRow.element == bindparam("element"),
        IS_UNSETTLED,
        or_(
            PlacementRow.added_revision > bindparam("confirmed"), PlacementRow.removed_revision > bindparam("confirmed")
        ),
        ClusterRow.request_id.is_not(None),
    )
    .order_by(ClusterRow.created_at.desc(), ClusterRow.id)
    .limit(MAX_REQUESTS)
)


def read_unconfirmed_calls(unit: Unit, name: str, confirmed: int) -> tuple[CallContext, ...]:
    """Return at most ``MAX_REQUESTS`` calls that changed an element's clusters after the revision ``confirmed``."""
    rows = unit.connection.execute(_READ_UNCONFIRMED_CALLS, {"element": name, "confirmed": confirmed})
    return tuple(CallContext(request_id=request, traceparent=trace) for request, trace in rows if request)


def read_confirmed_state(unit: Unit, name: str, target: WantedRevision) -> WantedState:
    """Return an element's wanted state, computed from those clusters of ``target`` that the element has confirmed."""
    confirmed = find_confirmed_clusters(unit, name, target.confirmed)
    clusters = [cluster for cluster in target.clusters if cluster.id in confirmed]
    return compute_wanted(Name(name), read_topology(unit), clusters)


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
    """Return the wanted document of a host or gateway for its agent.

    The document contains the wanted state and further data: guests' seeds, VPN, gateways' addresses in networks,
    routers, services, SSH access, published ports, and the marks of held segments.

    While the element counts as unreachable, the document's confirmed revision is 0, so that the agent reads its host
    again. Raise NotFound for an unknown element. Raise Conflict for a device, which has no agent.
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
    """Return the views of all elements, or of the elements at ``sites``, in the order of their names."""
    if sites is None:
        return [_format_element(row) for row in unit.session.scalars(_READ_ELEMENTS)]
    statements = (_READ_ELEMENTS.where(ElementRow.site.in_(group)) for group in split_ids(sorted(sites)))
    rows = (row for statement in statements for row in unit.session.scalars(statement))
    return [_format_element(row) for row in sorted(rows, key=lambda row: row.name)]


@dataclass(frozen=True, slots=True)
class ElementFilter:
    """Selects elements by site, by kind, and by need for attention."""

    site: Name | None = None
    kind: ElementKind | None = None
    troubled: bool = False

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the SQL conditions."""
        found = [IS_RECONCILED]
        found += [] if self.site is None else [ElementRow.site == self.site]
        found += [] if self.kind is None else [ElementRow.kind == self.kind]
        return found + ([HAS_TROUBLE] if self.troubled else [])


def read_element_page(unit: Unit, selected: ElementFilter, part: PagePart) -> Page[ElementView]:
    """Return a page of the selected elements, in the order of their names. Raise BadInput for an invalid cursor."""
    rows = select(ElementRow).where(*selected.conditions())
    return read_page(unit, rows, BY_NAME, part).convert(lambda found: [_format_element(row) for row in found])


def list_element_sites(unit: Unit) -> list[str]:
    """Return the names of the sites in the topology, sorted."""
    return list(unit.session.scalars(select(SiteRow.name).where(SiteRow.present).order_by(SiteRow.name)))


def count_elements(unit: Unit, selected: ElementFilter) -> int:
    """Return the number of elements that a filter selects."""
    return unit.session.scalar(select(func.count()).select_from(ElementRow).where(*selected.conditions())) or 0


def make_element_view(unit: Unit, name: str) -> ElementView:
    """Return the view of an element. Raise NotFound for an unknown element."""
    view = _format_element(require_element(unit, name))
    return view.model_copy(update={"notices": find_name_faults(unit, name)})


def make_last_view(unit: Unit, name: str) -> ElementView:
    """Return the view of an element, even if the element was removed from the topology.

    The caller has checked that SBF has an element with this name.
    """
    return _format_element(unit.session.get_one(ElementRow, name))


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
