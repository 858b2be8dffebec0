"""Users of VPN access: invitations to clusters, and the connections that gateways report."""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from sqlalchemy import delete, select

from sbf_service.store.access.replaced_connections import notify_replaced_gateways
from sbf_service.store.access.ssh_revocations import revoke_certificates_of
from sbf_service.store.access.vpn_profile_views import find_profiles, make_profile_views, require_live_cluster
from sbf_service.store.access.vpn_profiles import revoke_profiles
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.networks.cluster_gateways import read_cluster_gateways
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.vpn_tables import ClusterGatewayRow, VpnConnectionRow, VpnInvitationRow, VpnProfileRow
from sbf_service.store.unit_of_work import TRAFFIC_TOPIC, Unit, record_audit
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.message_text import printable
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.vpn import VpnConnections, VpnConnectionView, VpnInvitation, VpnProfileView, VpnProtocol

MAX_REMOTE: Final = 100


def invite_user(unit: Unit, key: str, user: UserName, cluster_id: str | None = None) -> VpnInvitation:
    """Allow a user to create VPN profiles and SSH certificates for a cluster. Idempotent.

    Raise NotFound for an unknown cluster. Raise Conflict if the cluster is ending or has ended.
    """
    row = require_live_cluster(unit, key, cluster_id)
    found = unit.session.get(VpnInvitationRow, (row.id, user))
    if found is None:
        found = VpnInvitationRow(cluster_id=row.id, user=user, invited_at=unit.now, invited_by=unit.who)
        unit.session.add(found)
        unit.session.flush()
        record_audit(unit, "vpn_user_invited", why=f"user {user}", cluster_id=row.id)
        _change_grants(unit, row)
    return _make_invitation(row, found)


def withdraw_invitation(unit: Unit, key: str, user: UserName, cluster_id: str | None = None) -> list[VpnProfileView]:
    """Withdraw an invitation, and revoke the user's profiles and certificates. Idempotent. Return the revoked profiles.

    Raise NotFound for an unknown cluster.
    """
    row = require_cluster(unit, key, cluster_id)
    found = unit.session.get(VpnInvitationRow, (row.id, user))
    if found is None:
        return []
    unit.session.delete(found)
    unit.session.flush()
    record_audit(unit, "vpn_invitation_withdrawn", why=f"user {user}", cluster_id=row.id)
    _change_grants(unit, row)
    revoke_certificates_of(unit, row, user)
    profiles = [profile for profile in find_profiles(unit, row, user) if profile.revoked_at is None]
    revoke_profiles(unit, row, profiles)
    return make_profile_views(unit, row, profiles)


def list_invitations(unit: Unit, key: str, cluster_id: str | None = None) -> list[VpnInvitation]:
    """Return the invitations to a cluster, ordered by the invited user. Raise NotFound for an unknown cluster."""
    row = require_cluster(unit, key, cluster_id)
    found = select(VpnInvitationRow).where(VpnInvitationRow.cluster_id == row.id).order_by(VpnInvitationRow.user)
    return [_make_invitation(row, invitation) for invitation in unit.session.scalars(found)]


def is_invited(unit: Unit, row: ClusterRow, user: str) -> bool:
    """Return whether a user is invited to a cluster."""
    return unit.session.get(VpnInvitationRow, (row.id, user)) is not None


def _change_grants(unit: Unit, row: ClusterRow) -> None:
    """Increment the revisions of the cluster's gateways: their wanted documents contain the grants for SSH."""
    increment_revisions(unit, read_cluster_gateways(unit, [row.id]).get(row.id, ()))


def _make_invitation(row: ClusterRow, invitation: VpnInvitationRow) -> VpnInvitation:
    return VpnInvitation(
        cluster=ClusterKey(row.key),
        user=UserName(invitation.user),
        invited_at=invitation.invited_at,
        invited_by=invitation.invited_by,
    )


def record_connections(unit: Unit, gateway: str, report: VpnConnections) -> None:
    """Replace the recorded connections of a gateway by the reported connections; idempotent.

    Raise NotFound for an unknown element. Raise Conflict for an element that is not a gateway.

    Ignore reported connections of clusters that do not use the gateway. If a profile with a new connection has a
    connection at another gateway, the gateway with the older connection gets a new revision, and then ends this
    connection.
    """
    element = require_element(unit, gateway)
    if element.kind != ElementKind.GATEWAY:
        raise Conflict(f"{element.kind} {gateway} is not a gateway: only gateways have VPN connections")
    unit.changed.add(TRAFFIC_TOPIC)
    former = _read_first_reports(unit, gateway)
    unit.session.execute(delete(VpnConnectionRow).where(VpnConnectionRow.gateway == gateway))
    known = _find_known_profiles(unit, gateway, [connection.profile for connection in report.connections])
    reported = {connection.profile: connection for connection in report.connections if connection.profile in known}
    for connection in reported.values():
        values = connection.model_dump(exclude={"profile"}) | {"remote": printable(connection.remote)[:MAX_REMOTE]}
        first = former.get((connection.profile, connection.connected_at)) or unit.now
        row = VpnConnectionRow(
            gateway=gateway,
            profile_id=connection.profile,
            reported_at=unit.now,
            first_reported_at=first,
            **values,
        )
        unit.session.add(row)
    unit.session.flush()
    new = [profile for profile, connection in reported.items() if (profile, connection.connected_at) not in former]
    notify_replaced_gateways(unit, gateway, new)


def _read_first_reports(unit: Unit, gateway: str) -> dict[tuple[str, datetime], datetime | None]:
    columns = VpnConnectionRow.profile_id, VpnConnectionRow.connected_at, VpnConnectionRow.first_reported_at
    rows = unit.session.execute(select(*columns).where(VpnConnectionRow.gateway == gateway))
    return {(profile, connected_at): first for profile, connected_at, first in rows}


def _find_known_profiles(unit: Unit, gateway: str, profiles: Sequence[str]) -> frozenset[str]:
    here = select(ClusterGatewayRow.cluster_id).where(ClusterGatewayRow.gateway == gateway)
    ids = (profile for profile in profiles if profile.isalnum())  # PostgreSQL accepts no NUL, even in a comparison
    found = [
        unit.session.scalars(
            select(VpnProfileRow.id).where(VpnProfileRow.id.in_(group), VpnProfileRow.cluster_id.in_(here))
        )
        for group in split_ids(ids)
    ]
    return frozenset(chain(*found))


def list_connections(
    unit: Unit, key: str, user: str | None = None, cluster_id: str | None = None
) -> list[VpnConnectionView]:
    """Return the connections of a cluster's profiles (only those of ``user``, if given), ordered by their start.

    Raise NotFound for an unknown cluster.
    """
    row = require_cluster(unit, key, cluster_id)
    of_user = [] if user is None else [VpnProfileRow.user == user]
    found = (
        select(VpnConnectionRow, VpnProfileRow)
        .join(VpnProfileRow, VpnProfileRow.id == VpnConnectionRow.profile_id)
        .where(VpnProfileRow.cluster_id == row.id, *of_user)
        .order_by(VpnConnectionRow.connected_at, VpnConnectionRow.profile_id)
    )
    return [_make_connection(*pair) for pair in unit.session.execute(found)]


def _make_connection(connection: VpnConnectionRow, profile: VpnProfileRow) -> VpnConnectionView:
    return VpnConnectionView(
        profile=profile.id,
        protocol=VpnProtocol(connection.protocol),
        remote=connection.remote,
        connected_at=connection.connected_at,
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        gateway=Name(connection.gateway),
        user=UserName(profile.user),
        device=Name(profile.device),
        reported_at=connection.reported_at,
    )
