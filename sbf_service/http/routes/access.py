"""Access: the caller's identity, tokens, quotas, and the audit log."""

import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.domain.rights import Action, ProtectedResource, RightScope, find_scope
from sbf_service.http.auth.authorization import (
    Caller,
    CurrentCaller,
    CurrentService,
    authorize_cluster,
    authorize_element,
)
from sbf_service.http.operations import Operation, Wait, wait_until_newer
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store import quotas, tokens
from sbf_service.store.audit_log import AuditFilter, find_newest_id, find_settled_id, read_entries
from sbf_service.store.cluster_keys import has_owned_key
from sbf_service.store.unit_of_work import AUDIT_TOPIC, Store
from virtcloud.model.access import Identity, NewToken, QuotaLimits, QuotaView, TokenId, TokenRequest, TokenView
from virtcloud.model.changes import AuditEntry
from virtcloud.model.values import ClusterKey, Name, UserName

ElementQuery = Annotated[Name | None, Query(description="Only changes on this element.")]
ClusterQuery = Annotated[ClusterKey | None, Query(description="Only changes for clusters with this key.")]
RequestQuery = Annotated[
    str | None, Query(max_length=64, description="Only changes on behalf of the call with this request ID.")
]
AfterIdQuery = Annotated[
    int | None, Query(ge=0, lt=2**31, description="Only rows after this ID; if omitted, the newest rows.")
]
LimitQuery = Annotated[int, Query(ge=1, le=1000, description="The maximum number of rows.")]

log = get_log(__name__)
router = APIRouter(prefix="/v1", route_class=Operation)


@router.get("/audit", tags=["audit"], responses=problem_responses(422))
async def get_audit(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    caller: CurrentCaller,
    service: CurrentService,
    element: ElementQuery = None,
    cluster: ClusterQuery = None,
    after: AfterIdQuery = None,
    limit: LimitQuery = 100,
    wait: Wait = 0,
    request_id: RequestQuery = None,
) -> list[AuditEntry]:
    """Return rows of the audit log, oldest first, or wait for newer rows."""
    allowed = await run_in_threadpool(
        _authorize_audit, service.store, caller, AuditFilter(element, cluster, request=request_id)
    )

    def read_newest_id() -> int:
        with service.store.read() as unit:
            return find_newest_id(unit, allowed)

    def read_rows() -> list[AuditEntry]:
        newest = find_settled_id(service.store)
        with service.store.read() as unit:
            return read_entries(unit, allowed, after, limit, newest)

    await wait_until_newer(service.change_feed, AUDIT_TOPIC, read_newest_id, after, wait)
    return await run_in_threadpool(read_rows)


def _authorize_audit(store: Store, caller: Caller, requested: AuditFilter) -> AuditFilter:
    """Return the requested filter, narrowed to the audit rows that the caller may read.

    Users may read rows about their own clusters. Site administrators may read rows about their sites. If a key belonged
    to several clusters, the filter selects only the clusters that the caller may read. Raise Forbidden or NotFound in
    the same cases as :func:`authorize_cluster` and :func:`authorize_element`.
    """
    caller.require_for_any(Action.READ_AUDIT, "cluster or element")
    if caller.is_unrestricted(Action.READ_AUDIT):
        return requested
    if requested.cluster is not None and find_scope(caller.principal, Action.READ_AUDIT) is RightScope.OWN:
        return _narrow_to_owner(store, caller, requested, ClusterKey(requested.cluster))
    if requested.cluster is not None:
        authorize_cluster(store, caller, Action.READ_AUDIT, ClusterKey(requested.cluster))
        return replace(requested, sites=caller.principal.sites)
    if requested.element is not None:
        authorize_element(store, caller, Action.READ_AUDIT, Name(requested.element))
        return requested
    caller.require(Action.READ_AUDIT, ProtectedResource("all clusters and elements (name one cluster or one element)"))
    return requested


def _narrow_to_owner(store: Store, caller: Caller, requested: AuditFilter, key: ClusterKey) -> AuditFilter:
    owner = caller.principal.name
    with store.read() as unit:
        is_owner = has_owned_key(unit, key, owner)
    if not is_owner:
        authorize_cluster(store, caller, Action.READ_AUDIT, key)
    return replace(requested, owner=owner)


@router.get("/whoami", tags=["access"])
def who_am_i(caller: CurrentCaller) -> Identity:
    """Return the user, role and sites of the caller."""
    return caller.principal.identity


@router.get("/tokens", tags=["access"])
def list_tokens(caller: CurrentCaller, service: CurrentService) -> list[TokenView]:
    """List tokens, oldest first, including expired and revoked tokens."""
    caller.require(Action.MANAGE_TOKENS)
    with service.store.read() as unit:
        return tokens.list_tokens(unit)


@router.post("/tokens", tags=["access"], status_code=HTTPStatus.CREATED, responses=problem_responses(422))
def create_token(request: TokenRequest, caller: CurrentCaller, service: CurrentService) -> NewToken:
    """Create a token. Only this answer contains the token itself. Not idempotent."""
    caller.require(Action.MANAGE_TOKENS)
    with service.store.change(who=caller.who) as unit:
        token = tokens.create_token(unit, request, secrets.token_bytes)
    log.info("token_created", id=token.id, name=token.name, role=token.role, by=caller.who)
    return token


@router.delete("/tokens/{id}", tags=["access"], responses=problem_responses(404, 422))
def revoke_token(id: TokenId, caller: CurrentCaller, service: CurrentService) -> TokenView:  # noqa: A002 - the word of the API
    """Revoke a token. Idempotent."""
    caller.require(Action.MANAGE_TOKENS)
    with service.store.change(who=caller.who) as unit:
        token = tokens.revoke_token(unit, id)
    log.info("token_revoked", id=token.id, name=token.name, role=token.role, by=caller.who)
    return token


@router.get("/quotas", tags=["access"])
def list_quotas(caller: CurrentCaller, service: CurrentService) -> list[QuotaView]:
    """List the users for whom a quota was set."""
    caller.require(Action.READ_QUOTA, ProtectedResource("every user"))
    with service.store.read() as unit:
        return quotas.list_quotas(unit, service.settings.quota)


@router.get("/quotas/{user}", tags=["access"], responses=problem_responses(422))
def get_quota(user: UserName, caller: CurrentCaller, service: CurrentService) -> QuotaView:
    """Return a user's quota and usage."""
    caller.require(Action.READ_QUOTA, _describe_user(user))
    with service.store.read() as unit:
        return quotas.make_quota_view(unit, user, service.settings.quota)


@router.put("/quotas/{user}", tags=["access"], responses=problem_responses(422))
def put_quota(user: UserName, limits: QuotaLimits, caller: CurrentCaller, service: CurrentService) -> QuotaView:
    """Set a user's quota. For a limit that the body omits, the limit in the service's settings applies."""
    caller.require(Action.SET_QUOTA, _describe_user(user))
    with service.store.change(who=caller.who) as unit:
        quotas.put_quota(unit, user, limits)
        view = quotas.make_quota_view(unit, user, service.settings.quota)
    log.info("quota_put", user=user, by=caller.who)
    return view


def _describe_user(user: UserName) -> ProtectedResource:
    return ProtectedResource(user, owner=user)
