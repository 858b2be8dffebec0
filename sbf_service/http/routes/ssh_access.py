"""SSH access to guests through gateways: short-lived certificates of users, revocation, and open connections."""

import secrets
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from sbf_service.domain.rights import Action
from sbf_service.domain.ssh_authority import parse_certified_key
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_element
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.http.routes.vpn import authorize_vpn, change_vpn
from sbf_service.store.access import ssh_certificates, ssh_revocations
from sbf_service.store.access.ssh_certificates import CertifiedUser
from sbf_service.store.elements.leases import record_agent_heartbeat
from virtcloud.model.ssh_access import SshAccessView, SshCertificateRequest, SshCertificateView
from virtcloud.model.ssh_connections import (
    SERIAL_LIMIT,
    SshCertificateEntry,
    SshConnections,
    SshConnectionView,
)
from virtcloud.model.values import Name, UserName

SERIAL_BITS = 63
SerialPath = Annotated[int, Path(description="The certificate's serial number.", ge=0, lt=SERIAL_LIMIT)]
EndedQuery = Annotated[bool, Query(description="Also return revoked and expired certificates that SBF still stores.")]
PROBLEMS = problem_responses(404, 409, 422)

router = APIRouter(prefix="/v1/clusters/{key}/ssh", tags=["ssh"], route_class=Operation)
gateway_router = APIRouter(prefix="/v1/elements", tags=["ssh"], route_class=Operation)


@router.get("", responses=PROBLEMS)
def get_ssh_access(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> SshAccessView:
    """Return the gateways through which the caller reaches the cluster's guests with SSH."""
    with service.store.read() as unit:
        authorize_vpn(unit, caller, Action.JOIN_NETWORK, key, id)
        return ssh_certificates.read_ssh_access(unit, key, caller.principal.name, id)


@router.post("/certificates", status_code=HTTPStatus.CREATED, responses=PROBLEMS)
def create_ssh_certificate(
    key: KeyPath,
    request: SshCertificateRequest,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> SshCertificateView:
    """Create a certificate for the caller's access to the cluster's guests through the cluster's gateways.

    The certificate is valid for some minutes. The caller keeps the private key.
    """
    caller.require_for_any(Action.JOIN_NETWORK, "cluster")
    caller.count_certificate()
    public_key = parse_certified_key(request.public_key)
    user = CertifiedUser(
        UserName(caller.principal.name), public_key, request.public_key.fingerprint, secrets.randbits(SERIAL_BITS)
    )
    with change_vpn(service, caller, Action.JOIN_NETWORK, key, id) as (unit, _):
        return ssh_certificates.create_certificate(unit, key, user, service.settings.limits, id)


@router.get("/certificates", responses=PROBLEMS)
def list_ssh_certificates(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    ended: EndedQuery = False,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[SshCertificateEntry]:
    """List a cluster's valid certificates, and expired certificates that still have open connections; oldest first.

    An invited user sees only the user's own certificates.
    """
    with service.store.read() as unit:
        user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
        return ssh_revocations.list_certificates(unit, key, user, id, ended=ended)


@router.delete("/certificates/{serial}", responses=PROBLEMS)
def revoke_ssh_certificate(
    key: KeyPath,
    serial: SerialPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> SshCertificateEntry:
    """Revoke a certificate; idempotent. The gateways end the certificate's open connections."""
    with change_vpn(service, caller, Action.REVOKE_VPN, key, id) as (unit, user):
        return ssh_revocations.revoke_certificate(unit, key, serial, user, id)


@router.get("/connections", responses=PROBLEMS)
def list_ssh_connections(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[SshConnectionView]:
    """List the open connections between users and guests, as the gateways reported them.

    An invited user sees only the user's own connections.
    """
    with service.store.read() as unit:
        user = authorize_vpn(unit, caller, Action.READ_VPN, key, id)
        return ssh_revocations.list_ssh_connections(unit, key, user, id)


@gateway_router.put("/{name}/ssh/connections", status_code=HTTPStatus.NO_CONTENT, responses=PROBLEMS)
def report_ssh_connections(name: Name, report: SshConnections, caller: CurrentCaller, service: CurrentService) -> None:
    """Report all SSH connections of a gateway; idempotent. The report replaces the gateway's former report."""
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)
    with service.store.change(who=caller.who) as unit:
        ssh_revocations.record_ssh_connections(unit, name, report)
