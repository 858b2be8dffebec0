"""Certificates of users for SSH through gateways: records, revocation, and open connections.

A gateway's wanted document contains a revocation until :data:`MAX_CLOCK_ERROR` has passed since the certificate's
expiry and no connection with the certificate is open.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from sqlalchemy import bindparam, delete, false, func, or_, select, update

from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.networks.cluster_gateways import read_cluster_gateways
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime, split_ids
from sbf_service.store.tables.ssh_tables import SshCertificateRow, SshConnectionRow
from sbf_service.store.tables.vpn_tables import ClusterGatewayRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.message_text import printable
from virtcloud.model.ssh_connections import SshCertificateEntry, SshConnections, SshConnectionView
from virtcloud.model.values import ClusterKey, Name, UserName

MAX_CLOCK_ERROR: Final = timedelta(minutes=10)
"""Wanted documents contain a revocation for at least this time after the certificate's expiry.

During this time, a gateway with a slow clock could still accept the certificate.
"""
REMEMBERED: Final = timedelta(hours=1)
"""SBF keeps a certificate's record for at least this time after the expiry, and while a connection is open.

SBF also keeps the record of a revoked certificate until the cluster begins to end: an unreachable gateway may have an
unreported connection.
"""
_IS_OPEN = select(SshConnectionRow.serial).where(SshConnectionRow.serial == SshCertificateRow.serial).exists()
_READ_REVOKED = (
    select(SshCertificateRow.cluster_id, SshCertificateRow.user, SshCertificateRow.serial)
    .where(SshCertificateRow.cluster_id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True)))
    .where(SshCertificateRow.revoked_at.is_not(None))
    .where(or_(SshCertificateRow.expires_at > bindparam("since", type_=UtcDateTime()), _IS_OPEN))
    .order_by(SshCertificateRow.serial)
)
_FORGET = delete(SshCertificateRow).where(SshCertificateRow.expires_at < bindparam("before", type_=UtcDateTime()))
_WANTED = select(ClusterRow.id).where(ClusterRow.state.in_(WANTED_STATES))
_FORGET = (
    _FORGET.where(~_IS_OPEN)
    .where(or_(SshCertificateRow.revoked_at.is_(None), SshCertificateRow.cluster_id.not_in(_WANTED)))
    .execution_options(synchronize_session=False)
)


def record_certificate(unit: Unit, certificate: SshCertificateRow) -> None:
    """Record a new certificate, and delete outdated records of all clusters (``REMEMBERED``)."""
    unit.session.execute(_FORGET, {"before": unit.now - REMEMBERED})
    unit.session.add(certificate)
    unit.session.flush()


def read_revoked_serials(unit: Unit, clusters: Iterable[str]) -> Mapping[tuple[str, str], Sequence[int]]:
    """Return the serial numbers of certificates that gateways must refuse, by cluster ID and user."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for group in split_ids(clusters):
        rows = unit.connection.execute(_READ_REVOKED, {"ids": group, "since": unit.now - MAX_CLOCK_ERROR})
        for cluster, user, serial in rows:
            found[cluster, user].append(serial)
    return found


def list_certificates(
    unit: Unit, key: str, user: str | None = None, cluster_id: str | None = None, *, ended: bool = False
) -> list[SshCertificateEntry]:
    """Return the certificates of a cluster, oldest first. Raise NotFound for an unknown cluster.

    Omit revoked certificates, and expired certificates without open connections. With ``ended``, also return these
    certificates, as far as their records exist. With ``user``, return only this user's. All certificates of a cluster
    expire when the cluster begins to end.
    """
    row = require_cluster(unit, key, cluster_id)
    of_user = [] if user is None else [SshCertificateRow.user == user]
    is_valid = false() if row.leaving_since else SshCertificateRow.expires_at > unit.now
    is_useful = SshCertificateRow.revoked_at.is_(None), or_(is_valid, _IS_OPEN)
    found = select(SshCertificateRow).where(
        SshCertificateRow.cluster_id == row.id, *of_user, *(() if ended else is_useful)
    )
    rows = unit.session.scalars(found.order_by(SshCertificateRow.created_at, SshCertificateRow.serial)).all()
    return _make_entries(unit, row, rows)


def revoke_certificate(
    unit: Unit, key: str, serial: int, user: str | None = None, cluster_id: str | None = None
) -> SshCertificateEntry:
    """Revoke a certificate: gateways refuse it, and end its connections. Idempotent.

    Raise NotFound for an unknown cluster or certificate, or for a certificate of a user other than ``user``.
    """
    row = require_cluster(unit, key, cluster_id)
    found = _find(unit, row, serial)
    if found is None or user not in {None, found.user}:
        raise NotFound(
            f"cluster {row.key} has no SSH certificate {serial} that is valid or has an open connection; 'virtcloud "
            "access list' shows the certificates"
        )
    if found.revoked_at is None:
        _revoke(unit, row, [found])
    (entry,) = _make_entries(unit, row, [found])
    return entry


def revoke_certificates_of(unit: Unit, row: ClusterRow, user: str) -> None:
    """Revoke a user's certificates for a cluster, so that a later invitation does not make them valid again."""
    known = SshCertificateRow.cluster_id == row.id, SshCertificateRow.user == user
    valid = select(SshCertificateRow).where(*known, SshCertificateRow.revoked_at.is_(None))
    _revoke(unit, row, unit.session.scalars(valid).all())


def revoke_all_certificates(unit: Unit) -> None:
    """Record all certificates as revoked, because their authority was replaced."""
    valid = update(SshCertificateRow).where(SshCertificateRow.revoked_at.is_(None))
    unit.session.execute(valid.values(revoked_at=unit.now))


def _find(unit: Unit, row: ClusterRow, serial: int) -> SshCertificateRow | None:
    """Return the record of a certificate, or None.

    If a connection with a forgotten certificate is open, create the record again.
    """
    found = unit.session.get(SshCertificateRow, serial)
    if found is not None:
        return found if found.cluster_id == row.id else None
    of_certificate = SshConnectionRow.cluster_id == row.id, SshConnectionRow.serial == serial
    connection = unit.session.scalars(select(SshConnectionRow).where(*of_certificate)).first()
    if connection is None:
        return None
    known = connection.connected_at or connection.reported_at
    found = SshCertificateRow(
        serial=serial, cluster_id=row.id, user=connection.user, created_at=known, expires_at=known
    )
    unit.session.add(found)
    return found


def _revoke(unit: Unit, row: ClusterRow, certificates: Sequence[SshCertificateRow]) -> None:
    for certificate in certificates:
        certificate.revoked_at = unit.now
        why = f"serial {certificate.serial} of {certificate.user}"
        record_audit(unit, "ssh_certificate_revoked", why=why, cluster_id=row.id)
    unit.session.flush()
    if certificates:
        increment_revisions(unit, read_cluster_gateways(unit, [row.id]).get(row.id, ()))


def _make_entries(unit: Unit, row: ClusterRow, rows: Sequence[SshCertificateRow]) -> list[SshCertificateEntry]:
    of_cluster = SshConnectionRow.cluster_id == row.id
    counted = select(SshConnectionRow.serial, func.count()).where(of_cluster).group_by(SshConnectionRow.serial)
    counts = {row[0]: row[1] for row in unit.session.execute(counted)}
    return [
        SshCertificateEntry(
            serial=one.serial,
            cluster=ClusterKey(row.key),
            user=UserName(one.user),
            fingerprint=one.fingerprint,
            created_at=one.created_at,
            expires_at=min(one.expires_at, row.leaving_since or one.expires_at),
            revoked_at=one.revoked_at,
            connections=counts.get(one.serial, 0),
        )
        for one in rows
    ]


def record_ssh_connections(unit: Unit, gateway: str, report: SshConnections) -> None:
    """Replace the recorded SSH connections of a gateway by the connections in ``report``. Idempotent.

    Raise NotFound for an unknown element. Raise Conflict for an element that is not a gateway. Ignore the connections
    of clusters that do not use the gateway. Increment the gateway's wanted revision if an open connection uses a
    revoked certificate that expired more than :data:`MAX_CLOCK_ERROR` ago, because the document may lack this
    revocation.
    """
    element = require_element(unit, gateway)
    if element.kind != ElementKind.GATEWAY:
        raise Conflict(f"{element.kind} {gateway} is not a gateway: only gateways have SSH connections")
    unit.session.execute(delete(SshConnectionRow).where(SshConnectionRow.gateway == gateway))
    known = _find_known_clusters(unit, gateway, [connection.cluster for connection in report.connections])
    kept = [connection for connection in report.connections if connection.cluster in known]
    for position, connection in enumerate(kept):
        values = connection.model_dump(exclude={"cluster"}) | {"remote": printable(connection.remote)}
        row = SshConnectionRow(
            gateway=gateway, position=position, cluster_id=connection.cluster, reported_at=unit.now, **values
        )
        unit.session.add(row)
    unit.session.flush()
    if _is_any_revoked(unit, [connection.serial for connection in kept], unit.now):
        increment_revisions(unit, [Name(gateway)])


def _find_known_clusters(unit: Unit, gateway: str, clusters: Sequence[str]) -> frozenset[str]:
    ids = {cluster for cluster in clusters if cluster.isalnum()}  # PostgreSQL accepts no NUL, even in a comparison
    here = ClusterGatewayRow.gateway == gateway
    found = [
        unit.session.scalars(select(ClusterGatewayRow.cluster_id).where(here, ClusterGatewayRow.cluster_id.in_(group)))
        for group in split_ids(sorted(ids))
    ]
    return frozenset(chain(*found))


def _is_any_revoked(unit: Unit, serials: Sequence[int], now: datetime) -> bool:
    forgotten = SshCertificateRow.revoked_at.is_not(None), SshCertificateRow.expires_at <= now - MAX_CLOCK_ERROR
    found = select(SshCertificateRow.serial).where(*forgotten).limit(1)
    groups = split_ids(serials)
    return any(unit.session.scalars(found.where(SshCertificateRow.serial.in_(group))).first() for group in groups)


def list_ssh_connections(
    unit: Unit, key: str, user: str | None = None, cluster_id: str | None = None
) -> list[SshConnectionView]:
    """Return the SSH connections to a cluster (only those of ``user``, if given), ordered by their start.

    Raise NotFound for an unknown cluster.
    """
    row = require_cluster(unit, key, cluster_id)
    of_user = [] if user is None else [SshConnectionRow.user == user]
    found = unit.session.scalars(select(SshConnectionRow).where(SshConnectionRow.cluster_id == row.id, *of_user))
    views = [
        SshConnectionView(
            gateway=Name(one.gateway),
            user=UserName(one.user),
            serial=one.serial,
            guest=Name(one.guest),
            remote=one.remote,
            connected_at=one.connected_at,
            reported_at=one.reported_at,
        )
        for one in found
    ]
    return sorted(views, key=lambda view: (view.connected_at or view.reported_at, view.serial, view.remote))
