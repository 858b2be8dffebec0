"""Outages of SBF in the database: the records of the deadline sweep, and the changes at the end of an outage.

All replicas share these records. ``domain/outages.py`` contains the rules.
"""

from datetime import timedelta
from itertools import chain

from sqlalchemy.dialects import postgresql, sqlite

from sbf_service.domain.outages import LEASE_GRACE, RECORD_INTERVAL, Outage, find_outage
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.clusters import set_lease_end
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.maintenance.metric_counts import read_service_time
from sbf_service.store.networks.cluster_gateways import read_cluster_gateways
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.service_tables import ServiceTimeRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.values import format_utc

SWEEP_TIME = "sweep"
"""The name of the row in the table ``service_times`` with the time of the last recorded deadline sweep."""
OUTAGE_TIME = "outage"
"""The name of the row in the table ``service_times`` with the end of the last outage."""

log = get_log(__name__)


def record_sweep(store: Store, longest_gap_s: float) -> None:
    """Record that SBF runs, unless the last record is less than ``RECORD_INTERVAL`` old.

    If the last record is older than ``longest_gap_s``, an outage ends: postpone leases and setup deadlines.
    """
    with store.read() as unit:
        if _is_recorded(unit):
            return
        is_outage = _read_outage(unit, longest_gap_s) is not None
    if not is_outage:
        with store.change_row() as unit:
            is_outage = _read_outage(unit, longest_gap_s) is not None  # a long wait for the lock is an outage, too
            if not is_outage:
                record_run(unit)
    if not is_outage:
        return
    with store.change() as unit:
        outage = _read_outage(unit, longest_gap_s)  # None if another replica has recorded the end of the outage
        leases, deadlines = (0, 0) if outage is None else _end_outage(unit, outage)
        record_run(unit)
    if outage is not None:
        log.warning("outage_ended", since=format_utc(outage.last_sweep), leases=leases, deadlines=deadlines)


def record_run(unit: Unit) -> None:
    """Record that SBF runs now, without detecting an outage."""
    _write_time(unit, SWEEP_TIME)


def _is_recorded(unit: Unit) -> bool:
    """Return whether the last record is less than ``RECORD_INTERVAL`` old.

    A record in the future, after the database's clock was set back, does not count.
    """
    last = read_service_time(unit, SWEEP_TIME)
    return last is not None and timedelta() <= unit.now - last < RECORD_INTERVAL


def _read_outage(unit: Unit, longest_gap_s: float) -> Outage | None:
    last, previous = read_service_time(unit, SWEEP_TIME), read_service_time(unit, OUTAGE_TIME)
    return find_outage(last, previous, unit.now, longest_gap_s)


def _end_outage(unit: Unit, outage: Outage) -> tuple[int, int]:
    """Postpone leases and setup deadlines after an outage, and record the outage's end.

    Return the numbers of postponed leases and of postponed deadlines.

    Omit clusters that were created after the beginning of the outage: SBF ran again by then.
    """
    _write_time(unit, OUTAGE_TIME)
    return _postpone_leases(unit, outage), _postpone_deadlines(unit, outage)


def _postpone_leases(unit: Unit, outage: Outage) -> int:
    rows = find_clusters(
        unit,
        equals_any(ClusterRow.state, WANTED_STATES),
        ClusterRow.lease_ends > outage.last_sweep,
        ClusterRow.lease_ends < outage.ended + LEASE_GRACE,
        ClusterRow.created_at <= outage.began,
    )
    later = [(row, outage.postpone_lease(row.lease_ends)) for row in rows]
    changed = [(row, ends) for row, ends in later if ends > row.lease_ends]
    for row, ends in changed:
        set_lease_end(unit, row, ends, _describe_cause(outage))
    unit.session.flush()
    if changed:
        # VPN grants end with the lease. Other gateways get an unneeded revision, which changes nothing: to find the
        # gateways of each network would take longer than all other statements together.
        increment_revisions(unit, chain.from_iterable(read_cluster_gateways(unit, None).values()))
    return len(changed)


def _postpone_deadlines(unit: Unit, outage: Outage) -> int:
    rows = find_clusters(
        unit,
        ClusterRow.state == ClusterState.CONFIGURING,
        ClusterRow.deadline > outage.began,
        ClusterRow.created_at <= outage.began,
    )
    for row in rows:
        deadline = outage.postpone_deadline(row.deadline)
        why = f"from {format_utc(row.deadline)} to {format_utc(deadline)}{_describe_cause(outage)}"
        record_audit(unit, "deadline_extended", why=why, cluster_id=row.id)
        row.deadline = deadline
    unit.session.flush()
    return len(rows)


def _describe_cause(outage: Outage) -> str:
    began, ended = format_utc(outage.last_sweep), format_utc(outage.ended)
    return f", because of an outage of SBF or its database between {began} and {ended}"


def _write_time(unit: Unit, name: str) -> None:
    row = {"name": name, "at": unit.now}
    new = (postgresql if unit.connection.dialect.name == "postgresql" else sqlite).insert(ServiceTimeRow).values(row)
    unit.session.execute(new.on_conflict_do_update(index_elements=[ServiceTimeRow.name], set_=row))
