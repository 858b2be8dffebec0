"""VPN connections that were replaced by a later connection of their profile at another gateway.

A profile may have only one connection. If a profile has two connections at one gateway, this gateway ends the older
connection. If the connections are at different gateways, SBF marks the older connection in the wanted document of its
gateway. This gateway then ends the connection.
"""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import aliased

from sbf_service.domain.vpn_access import ReportedConnection, is_replaced
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.tables.columns import NAME_TYPE, split_ids
from sbf_service.store.tables.vpn_tables import VpnConnectionRow
from sbf_service.store.unit_of_work import Unit

_OTHER = aliased(VpnConnectionRow)
_READ_PAIRS = (
    select(
        VpnConnectionRow.profile_id,
        VpnConnectionRow.connected_at,
        VpnConnectionRow.first_reported_at,
        _OTHER.gateway.label("other"),
        _OTHER.connected_at.label("other_connected_at"),
        _OTHER.first_reported_at.label("other_first_reported_at"),
    )
    .join(_OTHER, _OTHER.profile_id == VpnConnectionRow.profile_id)
    .where(VpnConnectionRow.gateway == bindparam("gateway"), _OTHER.gateway != VpnConnectionRow.gateway)
    .where(VpnConnectionRow.first_reported_at.is_not(None), _OTHER.first_reported_at.is_not(None))
)
_OF_PROFILES = VpnConnectionRow.profile_id.in_(bindparam("profiles", type_=NAME_TYPE, expanding=True))


def read_replaced_connections(unit: Unit, gateway: str) -> dict[str, datetime]:
    """Return the start time of each replaced connection of a gateway, by profile ID."""
    rows = unit.connection.execute(_READ_PAIRS, {"gateway": gateway})
    return {
        row.profile_id: row.connected_at
        for row in rows
        if is_replaced(
            ReportedConnection(row.connected_at, row.first_reported_at),
            ReportedConnection(row.other_connected_at, row.other_first_reported_at),
        )
    }


def notify_replaced_gateways(unit: Unit, gateway: str, profiles: Iterable[str]) -> None:
    """Increment the wanted revision of each gateway that must end a replaced connection.

    ``gateway`` has reported new connections of ``profiles``, and may itself have to end one of these.
    """
    pairs = [
        row
        for group in split_ids(profiles)
        for row in unit.connection.execute(_READ_PAIRS.where(_OF_PROFILES), {"gateway": gateway, "profiles": group})
    ]
    outdated = set()
    for row in pairs:
        new = ReportedConnection(row.connected_at, row.first_reported_at)
        other = ReportedConnection(row.other_connected_at, row.other_first_reported_at)
        outdated |= {row.other} if is_replaced(other, new) else {gateway} if is_replaced(new, other) else set()
    if outdated:
        increment_revisions(unit, outdated)
