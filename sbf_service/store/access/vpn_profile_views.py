"""Views of VPN profiles, with the elements that have not confirmed a change of the profile or of its cluster.

The elements include the profile's unreachable gateways.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select

from sbf_service.store.access.vpn_grants import (
    read_device_addresses,
)
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.clusters.live_clusters import read_networks
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vpn_tables import VpnProfileGatewayRow, VpnProfileRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import PlacementProgress
from virtcloud.model.vpn import Fingerprint, PendingElement, VpnProfileView

_READ_GATEWAYS = (
    select(
        VpnProfileGatewayRow.profile_id,
        VpnProfileGatewayRow.gateway,
        VpnProfileGatewayRow.revision,
        ElementRow.confirmed_revision,
        ElementRow.reachable,
        ElementRow.trouble,
    )
    .join(ElementRow, ElementRow.name == VpnProfileGatewayRow.gateway)
    .where(VpnProfileGatewayRow.profile_id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True)))
    .order_by(VpnProfileGatewayRow.profile_id, VpnProfileGatewayRow.position)
)


def list_profiles(
    unit: Unit, key: str, user: str | None = None, cluster_id: str | None = None, *, revoked: bool = False
) -> list[VpnProfileView]:
    """Return the profiles of a cluster, oldest first. Raise NotFound for an unknown cluster.

    ``user`` limits the result to one user. With ``revoked``, include revoked profiles.
    """
    row = require_cluster(unit, key, cluster_id)
    found = find_profiles(unit, row, user)
    return make_profile_views(unit, row, [profile for profile in found if revoked or profile.revoked_at is None])


def get_profile(unit: Unit, key: str, profile: str, cluster_id: str | None = None) -> VpnProfileView:
    """Return a profile. Raise NotFound for an unknown cluster or profile."""
    row = require_cluster(unit, key, cluster_id)
    (view,) = make_profile_views(unit, row, [require_profile(unit, row, profile)])
    return view


def find_profiles(unit: Unit, row: ClusterRow, user: str | None = None) -> Sequence[VpnProfileRow]:
    """Return the rows of a cluster's profiles, oldest first. ``user`` limits the result to one user."""
    of_user = [] if user is None else [VpnProfileRow.user == user]
    found = select(VpnProfileRow).where(VpnProfileRow.cluster_id == row.id, *of_user)
    return unit.session.scalars(found.order_by(VpnProfileRow.created_at, VpnProfileRow.id)).all()


def require_profile(unit: Unit, row: ClusterRow, profile: str) -> VpnProfileRow:
    """Return a profile of a cluster. Raise NotFound if the cluster has no such profile."""
    found = unit.session.get(VpnProfileRow, profile)
    if found is None or found.cluster_id != row.id:
        raise NotFound(f"cluster {row.key} has no VPN profile {profile}; 'virtcloud access list' shows all profiles")
    return found


def require_live_cluster(unit: Unit, key: str, cluster_id: str | None = None) -> ClusterRow:
    """Return a cluster. Raise NotFound for an unknown cluster. Raise Conflict if the cluster is ending or has ended."""
    row = require_cluster(unit, key, cluster_id)
    if row.state not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, and its network can no longer be joined: create a new cluster")
    return row


def make_profile_views(unit: Unit, row: ClusterRow, profiles: Sequence[VpnProfileRow]) -> list[VpnProfileView]:
    """Return the views of profiles of one cluster."""
    ids = [profile.id for profile in profiles]
    addresses, gateways = read_device_addresses(unit, ids), _read_gateways(unit, ids)
    network = read_networks(unit, [row])[row.network or row.id]
    elements, removing = list_pending_elements(unit, row), _list_removing_gateways(unit, row)
    return [
        VpnProfileView(
            id=profile.id,
            cluster=ClusterKey(row.key),
            user=UserName(profile.user),
            device=Name(profile.device),
            fingerprint=Fingerprint(profile.fingerprint),
            addresses=addresses.get(profile.id, ()),
            gateways=tuple(Name(gateway.gateway) for gateway in gateways[profile.id]),
            created_at=profile.created_at,
            created_by=profile.created_by,
            expires_at=profile.expires_at,
            router=profile.router,
            revoked_at=profile.revoked_at,
            lease_ends=min(row.lease_ends, network.lease_ends),
            pending=_list_pending(
                gateways[profile.id],
                removing if _is_ended_with(row, profile) else () if profile.revoked_at else elements,
            ),
        )
        for profile in profiles
    ]


def list_pending_elements(unit: Unit, row: ClusterRow) -> tuple[PendingElement, ...]:
    """Return the elements that have not confirmed the cluster; () for a cluster that is ending or has ended.

    Until these elements confirm the cluster, a device may reach only some of the guests.
    """
    if row.state not in WANTED_STATES:
        return ()
    return _list_elements(unit, row, PlacementProgress.ADDING, frozenset(ElementKind))


def _list_removing_gateways(unit: Unit, row: ClusterRow) -> tuple[PendingElement, ...]:
    """Return the gateways of an ending or ended cluster that have not confirmed its removal.

    They may still permit devices to connect.
    """
    if row.state in WANTED_STATES:
        return ()
    return _list_elements(unit, row, PlacementProgress.REMOVING, frozenset({ElementKind.GATEWAY}))


def _list_elements(
    unit: Unit, row: ClusterRow, progress: PlacementProgress, kinds: frozenset[ElementKind]
) -> tuple[PendingElement, ...]:
    return tuple(
        PendingElement(element=part.element, reachable=part.reachable, trouble=part.trouble)
        for part in read_placements(unit, [row.id]).get(row.id, ())
        if part.progress is progress and part.kind in kinds
    )


def _is_ended_with(row: ClusterRow, profile: VpnProfileRow) -> bool:
    ended, revoked = row.leaving_since, profile.revoked_at
    return ended is not None and revoked is not None and revoked >= ended


def _list_pending(gateways: Iterable[Any], elements: tuple[PendingElement, ...]) -> tuple[PendingElement, ...]:
    listed = {element.element for element in elements}
    own = (
        PendingElement(element=Name(gateway.gateway), reachable=gateway.reachable, trouble=gateway.trouble)
        for gateway in gateways
        if gateway.confirmed_revision < gateway.revision or not gateway.reachable
    )
    return (*elements, *(element for element in own if element.element not in listed))


def _read_gateways(unit: Unit, profiles: Iterable[str]) -> Mapping[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for group in split_ids(profiles):
        for gateway in unit.connection.execute(_READ_GATEWAYS, {"ids": group}):
            found[gateway.profile_id].append(gateway)
    return found
