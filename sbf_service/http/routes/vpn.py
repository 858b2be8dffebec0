"""VPN access to clusters: invitations, connections, and the profiles of devices."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource, is_allowed
from sbf_service.domain.vpn_authority import parse_device_key
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_element, describe_cluster
from sbf_service.http.auth.caller import Caller
from sbf_service.http.long_polls import CurrentPoll
from sbf_service.http.operations import Operation, Wait
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.store.access import vpn_profile_views, vpn_profiles, vpn_users
from sbf_service.store.access.vpn_profiles import NewDevice
from sbf_service.store.clusters.clusters import get_cluster, make_unknown_error, require_cluster
from sbf_service.store.elements.confirmations import confirmation_topic
from sbf_service.store.elements.leases import record_agent_heartbeat
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.vpn import (
    AuthorityRenewal,
    NewVpnProfile,
    VpnConnections,
    VpnConnectionView,
    VpnInvitation,
    VpnProfileRequest,
    VpnProfileView,
)

InvitedUserPath = Annotated[UserName, Path(description="The invited user.")]
ProfilePath = Annotated[str, Path(description="The profile's ID.", pattern="^[0-9a-f]{1,64}$")]
RevokedQuery = Annotated[bool, Query(description="Also return revoked profiles.")]
SECRET_BYTES = 32
PROBLEMS = problem_responses(404, 409, 422)
INVITED_ACTIONS = frozenset({Action.JOIN_NETWORK, Action.READ_VPN, Action.REVOKE_VPN})
"""The actions that an invited user may perform, restricted to the user's own VPN profiles and SSH certificates."""

router = APIRouter(prefix="/v1/clusters/{key}/vpn", tags=["vpn"], route_class=Operation)
authority_router = APIRouter(prefix="/v1/vpn/authority", tags=["vpn"], route_class=Operation)
gateway_router = APIRouter(prefix="/v1/elements", tags=["vpn"], route_class=Operation)


@router.post("/profiles", status_code=HTTPStatus.CREATED, responses=PROBLEMS)
def create_vpn_profile(
    key: KeyPath,
    request: VpnProfileRequest,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> NewVpnProfile:
    """Create a profile for a device of the caller. A former profile of the same device is revoked.

    With ``router``, the device gets the router addresses of the network. At most one device is the router. The caller
    keeps the private key. SBF shows the keys for tls-crypt-v2 only in this answer.
    """
    caller.require_for_any(Action.JOIN_NETWORK, "cluster")
    caller.count_profile()
    device_key = parse_device_key(request.csr)
    user = UserName(caller.principal.name)
    with change_vpn(service, caller, Action.JOIN_NETWORK, key, id) as (unit, invited):
        if request.router and invited is not None:
            raise Forbidden(
                f"{invited} may not make a device the router of cluster {key}: only the cluster's owner may"
            )
        device = NewDevice(service.store.new_id(), user, request.device, device_key, router=request.router)
        return vpn_profiles.create_profile(unit, key, device, service.settings.limits, id)


@router.get("/profiles", responses=PROBLEMS)
def list_vpn_profiles(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    revoked: RevokedQuery = False,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[VpnProfileView]:
    """List the profiles of a cluster, oldest first. An invited user sees only the user's own profiles."""
    with service.store.read() as unit:
        user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
        return vpn_profile_views.list_profiles(unit, key, user, id, revoked=revoked)


@router.get("/profiles/{profile}", responses=PROBLEMS)
async def get_vpn_profile(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    profile: ProfilePath,
    caller: CurrentCaller,
    service: CurrentService,
    poll: CurrentPoll,
    wait: Wait = 0,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> VpnProfileView:
    """Return a profile, with the elements that have not confirmed the profile yet.

    With ``wait``, wait until the list of these elements, or the error of one of these elements, changes.
    """

    def read() -> VpnProfileView:
        with service.store.read() as unit:
            user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
            _check_own(unit, key, profile, user, id)
            return vpn_profile_views.get_profile(unit, key, profile, id)

    view = await run_in_threadpool(read)
    if not view.pending or wait <= 0:
        return view
    topics = [confirmation_topic(pending.element) for pending in view.pending]
    await poll.wait_until_newer(
        topics[0], poll.in_thread(lambda: int(read() != view)), 0, wait, is_exact=False, others=topics[1:]
    )
    return await poll.read(read)


@router.delete("/profiles/{profile}", responses=PROBLEMS)
def revoke_vpn_profile(
    key: KeyPath,
    profile: ProfilePath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> VpnProfileView:
    """Revoke a profile; idempotent. The gateways end the device's connection."""
    with change_vpn(service, caller, Action.REVOKE_VPN, key, id) as (unit, user):
        _check_own(unit, key, profile, user, id)
        return vpn_profiles.revoke_profile(unit, key, profile, id)


@router.get("/connections", responses=PROBLEMS)
def list_vpn_connections(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[VpnConnectionView]:
    """List the devices that are connected to a cluster, as the gateways reported them."""
    with service.store.read() as unit:
        user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
        return vpn_users.list_connections(unit, key, user, id)


@router.get("/invitations", responses=PROBLEMS)
def list_vpn_invitations(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[VpnInvitation]:
    """List the users who are invited to a cluster. An invited user sees only the user's own invitation."""
    with service.store.read() as unit:
        user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
        found = vpn_users.list_invitations(unit, key, id)
    return [invitation for invitation in found if user in {None, invitation.user}]


@router.put("/invitations/{user}", responses=PROBLEMS)
def invite_vpn_user(
    key: KeyPath,
    user: InvitedUserPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> VpnInvitation:
    """Allow a user to create profiles for the user's own devices; idempotent."""
    with change_vpn(service, caller, Action.INVITE_USER, key, id) as (unit, _):
        return vpn_users.invite_user(unit, key, user, id)


@router.delete("/invitations/{user}", responses=PROBLEMS)
def withdraw_vpn_invitation(
    key: KeyPath,
    user: InvitedUserPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[VpnProfileView]:
    """Withdraw an invitation, revoke the user's profiles and certificates, and return these profiles; idempotent."""
    with change_vpn(service, caller, Action.INVITE_USER, key, id) as (unit, _):
        return vpn_users.withdraw_invitation(unit, key, user, id)


@authority_router.post("/renew")
def renew_vpn_authority(caller: CurrentCaller, service: CurrentService) -> AuthorityRenewal:
    """Replace the certificate authority for VPN access, and revoke all profiles of all clusters.

    This call is necessary after a theft of the database, because the thief can impersonate gateways with the
    authority's secret.
    """
    caller.require(Action.RENEW_AUTHORITY)
    with service.store.change(who=caller.who) as unit:
        return AuthorityRenewal(revoked=vpn_profiles.renew_authority(unit, secrets.token_bytes(SECRET_BYTES)))


@gateway_router.put("/{name}/vpn/connections", status_code=HTTPStatus.NO_CONTENT, responses=PROBLEMS)
def report_vpn_connections(name: Name, report: VpnConnections, caller: CurrentCaller, service: CurrentService) -> None:
    """Report all connections of a gateway; idempotent. The report replaces the gateway's former report."""
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)
    with service.store.change(who=caller.who) as unit:
        vpn_users.record_connections(unit, name, report)


@contextmanager
def change_vpn(
    service: SbfService, caller: Caller, action: Action, key: ClusterKey, cluster_id: str | None
) -> Iterator[tuple[Unit, UserName | None]]:
    """Yield a unit of work to change a cluster's VPN access, SSH certificates or publications.

    The second value is the result of :func:`authorize_vpn`.

    The right to ``action`` is checked before the write lock is acquired, and again in the unit of work.
    """
    with service.store.read() as unit:
        authorize_vpn(unit, caller, action, key, cluster_id)
    with service.store.change(who=caller.who) as unit:
        yield unit, authorize_vpn(unit, caller, action, key, cluster_id)


def authorize_vpn(
    unit: Unit, caller: Caller, action: Action, key: ClusterKey, cluster_id: str | None
) -> UserName | None:
    """Check a right to a cluster's VPN access, SSH certificates or publications.

    Return the user to whose own profiles and certificates the right is limited (an invited user), or None without a
    limit. A site administrator has rights if a gateway of the cluster is at the administrator's sites. Raise Forbidden
    or NotFound as :func:`authorize_cluster` does.
    """
    caller.require_for_any(action, "cluster")
    row, view = require_cluster(unit, key, cluster_id), get_cluster(unit, key, cluster_id)
    gateways = [placement for placement in view.placements if placement.kind is ElementKind.GATEWAY]
    sites = frozenset(placement.site for placement in gateways)
    resource = ProtectedResource(f"cluster {key}", owner=row.owner, sites=sites)
    if is_allowed(caller.principal, action, resource):
        return None
    is_user = caller.principal.role is Role.USER
    if is_user and action in INVITED_ACTIONS and vpn_users.is_invited(unit, row, caller.principal.name):
        return UserName(caller.principal.name)
    if is_allowed(caller.principal, Action.READ_CLUSTER, describe_cluster(view)):
        caller.require(action, resource)
    raise caller.deny(make_unknown_error(key, cluster_id), action, resource)


def _check_own(unit: Unit, key: ClusterKey, profile: str, user: UserName | None, cluster_id: str | None) -> None:
    found = vpn_profile_views.require_profile(unit, require_cluster(unit, key, cluster_id), profile)
    if user not in {None, found.user}:
        raise Forbidden(f"{user} may not see or revoke VPN profile {profile}: it belongs to another user")
