"""SSH access to guests through gateways: short certificates of users."""

import secrets
from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.domain.rights import Action
from sbf_service.domain.ssh_authority import parse_certified_key
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.http.routes.vpn import authorize_vpn
from sbf_service.store import ssh_certificates
from sbf_service.store.ssh_certificates import CertifiedUser
from virtcloud.model.ssh_access import SshAccessView, SshCertificateRequest, SshCertificateView
from virtcloud.model.values import UserName

SERIAL_BITS = 63
PROBLEMS = problem_responses(404, 409, 422)

router = APIRouter(prefix="/v1/clusters/{key}/ssh", tags=["ssh"], route_class=Operation)


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
    """Create a certificate with which the caller reaches the cluster's guests through its gateways for some minutes.

    The caller keeps the private key.
    """
    caller.require_for_any(Action.JOIN_NETWORK, "cluster")
    caller.count_certificate()
    public_key = parse_certified_key(request.public_key)
    user = CertifiedUser(
        UserName(caller.principal.name), public_key, request.public_key.fingerprint, secrets.randbits(SERIAL_BITS)
    )
    with service.store.read() as unit:
        authorize_vpn(unit, caller, Action.JOIN_NETWORK, key, id)
    with service.store.change(who=caller.who) as unit:
        authorize_vpn(unit, caller, Action.JOIN_NETWORK, key, id)
        return ssh_certificates.create_certificate(unit, key, user, service.settings.limits, id)
