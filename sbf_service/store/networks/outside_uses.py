"""The use of destinations outside: sums of the counters that gateways report.

A destination is the topology's name for addresses or FQDNs outside virtcloud's networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import bindparam, select

from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.gateway_tables import OutsideUseRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vpn_tables import ClusterGatewayRow
from sbf_service.store.unit_of_work import TRAFFIC_TOPIC, Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.outside_use import DestinationUse, DestinationUseView, OutsideReport, ResolvedName
from virtcloud.model.values import Name

COUNTERS: Final = ("connections", "sent_bytes", "received_bytes")
_NAMES: Final = TypeAdapter(tuple[ResolvedName, ...])
_MOST: Final = (1 << 63) - 1

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class UseIncrease:
    """The increases of a destination's counters since the previous report of a gateway."""

    destination: Name
    counters: Mapping[str, int]


def record_uses(unit: Unit, gateway: str, report: OutsideReport) -> list[UseIncrease]:
    """Increase the sum of each counter by the counter's increase since the gateway's previous report.

    Return the counters' increases. Idempotent: a repeated report increases nothing. Delete the recorded FQDNs of
    destinations that the report lacks. Ignore networks that do not use the gateway, and destinations that a network did
    not request. Raise NotFound for an unknown element. Raise Conflict for an element that is not a gateway.
    """
    element = require_element(unit, gateway)
    if element.kind != ElementKind.GATEWAY:
        raise Conflict(f"{element.kind} {gateway} is not a gateway: only gateways have destinations outside")
    unit.changed.add(TRAFFIC_TOPIC)
    allowed = _find_destinations(unit, gateway)
    found = unit.session.scalars(select(OutsideUseRow).where(OutsideUseRow.gateway == gateway))
    rows = {(row.network_id, row.destination): row for row in found}
    reported = {(use.network, use.destination): use for use in report.uses}
    for key in rows.keys() - reported.keys():
        rows[key].names = None
    return [
        _add(unit, gateway, use, rows.get(key))
        for key, use in reported.items()
        if use.destination in allowed.get(use.network, ())
    ]


def _find_destinations(unit: Unit, gateway: str) -> dict[str, tuple[Name, ...]]:
    here = select(ClusterGatewayRow.cluster_id).where(ClusterGatewayRow.gateway == gateway)
    rows = find_clusters(unit, ClusterRow.id.in_(here), equals_any(ClusterRow.state, WANTED_STATES))
    found = {}
    for row in rows:
        try:
            found[row.id] = parse_current_spec(row).outside
        except ValueError as error:
            log.fault("cluster_not_read", error, cluster=row.id, gateway=gateway)
    return found


def _add(unit: Unit, gateway: str, use: DestinationUse, row: OutsideUseRow | None) -> UseIncrease:
    """Add the counters' increases to the sums.

    A decreased counter shows that the gateway has restarted all counters at 0.
    """
    if row is None:
        row = OutsideUseRow(network_id=use.network, gateway=gateway, destination=use.destination, since=unit.now)
        for name in COUNTERS:
            setattr(row, name, 0)
            setattr(row, f"reported_{name}", 0)
        unit.session.add(row)
    is_reset = any(getattr(use, name) < getattr(row, f"reported_{name}") for name in COUNTERS)
    increases = {}
    for name in COUNTERS:
        counter = getattr(use, name)
        increases[name] = counter - (0 if is_reset else getattr(row, f"reported_{name}"))
        setattr(row, name, min(getattr(row, name) + increases[name], _MOST))
        setattr(row, f"reported_{name}", counter)
    row.reported_at = unit.now
    row.names = _NAMES.dump_json(use.names).decode() if use.names else None
    unit.session.flush()
    return UseIncrease(use.destination, increases)


def list_uses(unit: Unit, key: str, cluster_id: str | None = None) -> list[DestinationUseView]:
    """Return the use of destinations by a cluster's network. Raise NotFound for an unknown cluster."""
    row = require_cluster(unit, key, cluster_id)
    found = (
        select(OutsideUseRow)
        .where(OutsideUseRow.network_id == (row.network or row.id))
        .order_by(OutsideUseRow.destination, OutsideUseRow.gateway)
    )
    return [_make_view(use) for use in unit.session.scalars(found)]


def _make_view(row: OutsideUseRow) -> DestinationUseView:
    return DestinationUseView(
        destination=Name(row.destination),
        gateway=Name(row.gateway),
        connections=row.connections,
        sent_bytes=row.sent_bytes,
        received_bytes=row.received_bytes,
        since=row.since,
        reported_at=row.reported_at,
        names=_NAMES.validate_json(row.names or "[]"),
    )


_READ_NAMES = select(OutsideUseRow.names).where(
    OutsideUseRow.gateway == bindparam("gateway"), OutsideUseRow.names.is_not(None)
)


def find_name_faults(unit: Unit, gateway: str) -> tuple[str, ...]:
    """Return the errors of FQDNs in a gateway's latest report: sorted, distinct texts of the form ``FQDN: error``."""
    return tuple(sorted({f"{name.fqdn}: {name.error}" for name in _read_failing_names(unit, gateway)}))


def _read_failing_names(unit: Unit, gateway: str) -> list[ResolvedName]:
    found = unit.session.scalars(_READ_NAMES, {"gateway": gateway})
    return [name for text in found for name in _NAMES.validate_json(text or "[]") if name.error is not None]


def count_failing_names(unit: Unit) -> dict[str, int]:
    """Return the number of FQDNs with an error in the latest report, by gateway."""
    gateways = select(ElementRow.name).where(ElementRow.kind == ElementKind.GATEWAY, ElementRow.present)
    found = select(OutsideUseRow.gateway).where(OutsideUseRow.names.is_not(None)).distinct()
    resolving = set(unit.session.scalars(found))
    return {
        gateway: len({name.fqdn for name in _read_failing_names(unit, gateway)}) if gateway in resolving else 0
        for gateway in unit.session.scalars(gateways.order_by(ElementRow.name))
    }
