"""Creation and revocation of devices' VPN profiles, and replacement of the certificate authority.

When SBF replaces the certificate authority, SBF revokes all profiles.

The transaction that changes profiles also increments the revisions of the gateways, whose wanted documents contain a
grant for each valid profile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from sqlalchemy import delete, func, select

from sbf_service.domain.addressing import choose_device_addresses
from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.tls_crypt_keys import make_client_key
from sbf_service.domain.vpn_access import list_remotes
from sbf_service.domain.vpn_authority import DeviceKey, make_authority_certificate, make_device_certificate
from sbf_service.store.access.ssh_revocations import revoke_all_certificates
from sbf_service.store.access.vpn_grants import (
    VPN_SECRET,
    check_router,
    connect_gateways,
    read_device_addresses,
    read_vpn_secret,
)
from sbf_service.store.access.vpn_profile_views import make_profile_views, require_live_cluster, require_profile
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.live_clusters import read_networks
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.networks.cluster_gateways import find_alive_gateways, read_cluster_gateways
from sbf_service.store.networks.networks import read_network_addresses
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.service_tables import ServiceSecretRow
from sbf_service.store.tables.vpn_tables import VpnAddressRow, VpnProfileGatewayRow, VpnProfileRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.errors import BeyondLimit, Conflict
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Address, Name, UserName, format_utc
from virtcloud.model.vpn import NewVpnProfile, VpnProfileView

SHORTEST_VALIDITY = timedelta(seconds=1)
"""The minimum validity of a profile or an SSH certificate.

A shorter validity could be zero in the certificate, whose times are whole seconds.
"""
_IS_VALID = VpnProfileRow.revoked_at.is_(None)


@dataclass(frozen=True, slots=True)
class NewDevice:
    """A device for which a user requests a profile, possibly as the network's router."""

    profile: str
    user: UserName
    name: Name
    key: DeviceKey
    router: bool = False


def create_profile(
    unit: Unit, key: str, device: NewDevice, limits: RequestLimits, cluster_id: str | None = None
) -> NewVpnProfile:
    """Create the profile of a device, after connecting the cluster to gateways if necessary.

    An old profile of the device is revoked. The device keeps its addresses, unless exactly one of the two profiles
    makes the device the router.

    Raise NotFound for an unknown cluster. Raise Conflict if the cluster is ending or has ended. Raise NoGateway if no
    suitable gateway offers VPN access. Raise NoAddressFree if a subnet has no free address. Raise BeyondLimit if the
    cluster has the maximum number of profiles and the device has no old profile. Raise the errors of
    :func:`.check_router` for a router.
    """
    row = require_live_cluster(unit, key, cluster_id)
    network = read_networks(unit, [row])[row.network or row.id]
    ends = min(row.lease_ends, network.lease_ends)
    if ends <= unit.now + SHORTEST_VALIDITY:
        raise Conflict(f"cluster {key}: its lease ended at {format_utc(ends)}: create a new cluster")
    former = _find_valid(unit, row, device)
    if former is None:
        _check_limit(unit, row, limits)
    if device.router:
        check_router(unit, row, network, former)
    gateways = _prefer_alive(unit, connect_gateways(unit, row))
    addresses = () if former is None else _revoke(unit, former)
    if device.router:
        addresses = parse_current_spec(network).router_addresses or ()
    elif former is None or former.router:
        addresses = choose_device_addresses(read_network_addresses(unit, network))
    secret = read_vpn_secret(unit)
    certificate = make_device_certificate(secret, device.profile, device.key, unit.now, ends)
    created = _make_row(unit, row, network.id, device, certificate.fingerprint, ends)
    _insert(unit, created, gateways, addresses)
    _record_revisions(unit, [created, *([former] if former else [])])
    replaced = "" if former is None else f", replaces profile {former.id}"
    record_audit(unit, "vpn_profile_created", why=f"{_describe(created)}{replaced}", cluster_id=row.id)
    return _show_new(unit, row, created, gateways, certificate.text)


def _make_row(  # noqa: PLR0913, PLR0917 - the columns
    unit: Unit, row: ClusterRow, network: str, device: NewDevice, fingerprint: str, ends: datetime
) -> VpnProfileRow:
    return VpnProfileRow(
        id=device.profile,
        cluster_id=row.id,
        network_id=network,
        user=device.user,
        device=device.name,
        fingerprint=fingerprint,
        created_at=unit.now,
        created_by=unit.who,
        expires_at=ends.replace(microsecond=0),
        router=device.router,
    )


def _show_new(
    unit: Unit, row: ClusterRow, created: VpnProfileRow, gateways: Sequence[Name], certificate: str
) -> NewVpnProfile:
    """Return a new profile with its certificate, and with the device's keys for tls-crypt-v2.

    SBF stores neither the certificate nor these keys.
    """
    (view,) = make_profile_views(unit, row, [created])
    topology, secret = read_topology(unit), read_vpn_secret(unit)
    keys = {name: make_client_key(secret, name, created.id) for name in gateways}
    return NewVpnProfile(
        **view.model_dump(),
        authority=make_authority_certificate(secret),
        certificate=certificate,
        remotes=list_remotes([topology.gateways[name] for name in gateways], keys),
    )


def revoke_profile(unit: Unit, key: str, profile: str, cluster_id: str | None = None) -> VpnProfileView:
    """Revoke a profile, and return its view. Idempotent. Raise NotFound for an unknown cluster or profile."""
    row = require_cluster(unit, key, cluster_id)
    found = require_profile(unit, row, profile)
    revoke_profiles(unit, row, [found])
    (view,) = make_profile_views(unit, row, [found])
    return view


def revoke_profiles(unit: Unit, row: ClusterRow, profiles: Iterable[VpnProfileRow]) -> None:
    """Revoke the valid profiles among ``profiles``, and increment the revisions of the cluster's gateways.

    ``row`` is the cluster of all ``profiles``. If no profile is valid, change nothing.
    """
    valid = [profile for profile in profiles if profile.revoked_at is None]
    for profile in valid:
        _revoke(unit, profile)
        record_audit(unit, "vpn_profile_revoked", why=_describe(profile), cluster_id=row.id)
    if valid:
        _record_revisions(unit, valid, read_cluster_gateways(unit, [row.id]).get(row.id, ()))


def renew_authority(unit: Unit, new_secret: bytes) -> int:
    """Replace the secret of the certificate authority, and revoke all VPN profiles and SSH certificates.

    Return the number of revoked profiles. All gateways get new keys and certificates, and refuse the old authority's
    certificates.
    """
    unit.session.get_one(ServiceSecretRow, VPN_SECRET).value = new_secret.hex()
    rows = unit.session.scalars(select(VpnProfileRow).where(_IS_VALID)).all()
    for row in rows:
        _revoke(unit, row)
    revoke_all_certificates(unit)
    record_audit(unit, "vpn_authority_renewed", why=f"{count_of(len(rows), 'profile')} revoked")
    _record_revisions(unit, rows, read_topology(unit).gateways)
    return len(rows)


def _find_valid(unit: Unit, row: ClusterRow, device: NewDevice) -> VpnProfileRow | None:
    of_device = VpnProfileRow.user == device.user, VpnProfileRow.device == device.name
    found = select(VpnProfileRow).where(VpnProfileRow.cluster_id == row.id, *of_device, _IS_VALID)
    return unit.session.scalars(found).one_or_none()


def _check_limit(unit: Unit, row: ClusterRow, limits: RequestLimits) -> None:
    count = unit.session.scalar(select(func.count()).where(VpnProfileRow.cluster_id == row.id, _IS_VALID)) or 0
    if count >= limits.profiles:
        raise BeyondLimit(
            f"cluster {row.key} already has {count_of(count, 'VPN profile')} (limit {limits.profiles}): revoke a "
            "profile with 'virtcloud access revoke'; the limit is 'limits.profiles' in the settings of this SBF"
        )


def _prefer_alive(unit: Unit, gateways: Sequence[Name]) -> list[Name]:
    alive = find_alive_gateways(unit)
    return sorted(gateways, key=lambda name: name not in alive)


def _revoke(unit: Unit, profile: VpnProfileRow) -> tuple[Address, ...]:
    addresses = read_device_addresses(unit, [profile.id]).get(profile.id, ())
    profile.revoked_at = unit.now
    unit.session.flush()
    unit.session.execute(delete(VpnAddressRow).where(VpnAddressRow.profile_id == profile.id))
    return addresses


def _insert(unit: Unit, created: VpnProfileRow, gateways: Sequence[Name], addresses: Iterable[Address]) -> None:
    unit.session.add(created)
    unit.session.flush()
    for position, gateway in enumerate(gateways):
        row = VpnProfileGatewayRow(profile_id=created.id, gateway=gateway, position=position, revision=0)
        unit.session.add(row)
    for address in addresses:
        text, _, length = address.partition("/")
        unit.session.add(
            VpnAddressRow(network_id=created.network_id, address=text, prefix_length=int(length), profile_id=created.id)
        )
    unit.session.flush()


def _record_revisions(unit: Unit, profiles: Iterable[VpnProfileRow], others: Iterable[Name] = ()) -> None:
    """Increment the wanted revisions of ``others`` and of the profiles' gateways.

    For each profile, record the new revisions of its gateways. When a gateway has confirmed the recorded revision, the
    gateway has applied the profile's latest change.
    """
    of_profile = VpnProfileGatewayRow.profile_id
    found = [
        unit.session.scalars(select(VpnProfileGatewayRow).where(of_profile.in_(group)))
        for group in split_ids(profile.id for profile in profiles)
    ]
    rows = list(chain(*found))
    revisions = increment_revisions(unit, {*others, *(row.gateway for row in rows)})
    for row in rows:
        row.revision = revisions[row.gateway].revision
    unit.session.flush()


def _describe(profile: VpnProfileRow) -> str:
    role = ", router of the network" if profile.router else ""
    return (
        f"profile {profile.id} of {profile.user} for device {profile.device}{role}, certificate {profile.fingerprint}"
    )
