"""The traffic of clusters: the last samples of reported counters, and their rates.

The samples are in the database, so that any replica can receive reports and return rates (decision 84). A network has
one row of limited length for each host and gateway, until the network ends.
"""

from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, func, select

from sbf_service.domain.traffic import (
    COUNTERS,
    TrafficSample,
    add_sample,
    compute_rates,
    find_increases,
    format_samples,
    parse_samples,
)
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.gateway_tables import TrafficRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.traffic import ElementTraffic, TrafficReport
from virtcloud.model.values import Name

_NETWORKS_HERE: Final = (
    select(func.coalesce(ClusterRow.network, ClusterRow.id))
    .join(PlacementRow, PlacementRow.cluster_id == ClusterRow.id)
    .where(PlacementRow.element == bindparam("element"), PlacementRow.removed_revision.is_(None))
)
_ROWS_HERE: Final = select(TrafficRow).where(TrafficRow.element == bindparam("element"))
_OF_NETWORK: Final = (
    select(TrafficRow, ElementRow.site)
    .join(ElementRow, ElementRow.name == TrafficRow.element)
    .where(TrafficRow.network_id == bindparam("network"))
    .order_by(ElementRow.site, TrafficRow.element)
)
_LAST_REPORT: Final = select(func.max(TrafficRow.reported_at)).where(TrafficRow.network_id == bindparam("network"))


def record_traffic(unit: Unit, element: str, report: TrafficReport) -> dict[str, int]:
    """Add the counters in an agent's report to the samples of its element, and return their increases.

    The increases since the previous report, by counter name, are summed over all networks.

    Ignore networks without a placement on the element, and delete their rows for the element. Raise NotFound for an
    unknown element.
    """
    require_element(unit, element)
    here = set(unit.connection.execute(_NETWORKS_HERE, {"element": element}).scalars())
    rows = {row.network_id: row for row in unit.session.scalars(_ROWS_HERE, {"element": element})}
    for network in rows.keys() - here:
        unit.session.delete(rows[network])
    increases = dict.fromkeys(COUNTERS, 0)
    for reported in report.segments:
        if reported.network in here:
            new = TrafficSample.of(reported, unit.now)
            _add_sample(unit, element, reported.network, rows, new, increases)
    unit.session.flush()
    return increases


def _add_sample(  # noqa: PLR0913, PLR0917 - one step of the function above
    unit: Unit, element: str, network: str, rows: dict[str, TrafficRow], new: TrafficSample, increases: dict[str, int]
) -> None:
    row = rows.get(network)
    former = () if row is None else parse_samples(row.samples)
    samples = add_sample(former, new)
    if samples is None:
        return
    if row is None:
        rows[network] = row = TrafficRow(network_id=network, element=element)
        unit.session.add(row)
    row.reported_at, row.samples = unit.now, format_samples(samples)
    found = find_increases(former[-1], new) if former else None
    for name, increase in zip(COUNTERS, found or (), strict=False):
        increases[name] += increase


def list_traffic(unit: Unit, key: str, cluster_id: str | None = None) -> list[ElementTraffic]:
    """Return the traffic of a cluster's network at each host and gateway. Raise NotFound for an unknown cluster."""
    row = require_cluster(unit, key, cluster_id)
    found = unit.session.execute(_OF_NETWORK, {"network": row.network or row.id})
    return [
        ElementTraffic(
            element=Name(traffic.element),
            site=Name(site),
            reported_at=traffic.reported_at,
            rates=compute_rates(parse_samples(traffic.samples)),
        )
        for traffic, site in found
    ]


def find_last_report(unit: Unit, network: str) -> datetime | None:
    """Return the time of the last report on a network's traffic, or None if no agent has reported traffic yet."""
    return unit.session.scalar(_LAST_REPORT, {"network": network})
