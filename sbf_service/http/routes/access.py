"""Access: tokens, quotas, and the identity of the caller."""

import secrets
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService
from sbf_service.http.operations import Operation
from sbf_service.http.pages import PAGES, CurrentPage
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.users import quotas, tokens
from virtcloud.model.access import Identity, NewToken, QuotaLimits, QuotaView, Role, TokenId, TokenRequest, TokenView
from virtcloud.model.values import UserName

HolderQuery = Annotated[UserName | None, Query(description="Only tokens of this holder.")]
RoleQuery = Annotated[Role | None, Query(description="Only tokens with this role.")]

log = get_log(__name__)
router = APIRouter(prefix="/v1", route_class=Operation)


@router.get("/whoami", tags=["access"])
def who_am_i(caller: CurrentCaller) -> Identity:
    """Return the user, role and sites of the caller."""
    return caller.principal.identity


@router.get("/tokens", tags=["access"], response_model=list[TokenView], responses={**PAGES, **problem_responses(422)})
def list_tokens(
    caller: CurrentCaller,
    service: CurrentService,
    page: CurrentPage,
    name: HolderQuery = None,
    role: RoleQuery = None,
) -> Response:
    """List tokens, oldest first, including expired and revoked tokens."""
    caller.require(Action.MANAGE_TOKENS)

    def read(part: PagePart) -> Page[TokenView]:
        with service.store.read() as unit:
            return tokens.read_token_page(unit, part, name, role)

    return page.answer(TokenView, read)


@router.post("/tokens", tags=["access"], status_code=HTTPStatus.CREATED, responses=problem_responses(422))
def create_token(request: TokenRequest, caller: CurrentCaller, service: CurrentService) -> NewToken:
    """Create a token. Only this answer contains the token itself. Not idempotent.

    If SBF has a topology, the topology must contain all sites of a new token for a site administrator.
    """
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


@router.get("/quotas", tags=["access"], response_model=list[QuotaView], responses={**PAGES, **problem_responses(422)})
def list_quotas(caller: CurrentCaller, service: CurrentService, page: CurrentPage) -> Response:
    """List the users for whom a quota was set."""
    caller.require(Action.READ_QUOTA, ProtectedResource("every user"))

    def read(part: PagePart) -> Page[QuotaView]:
        with service.store.read() as unit:
            return quotas.read_quota_page(unit, part, service.settings.quota)

    return page.answer(QuotaView, read)


@router.get("/quotas/{user}", tags=["access"], responses=problem_responses(422))
def get_quota(user: UserName, caller: CurrentCaller, service: CurrentService) -> QuotaView:
    """Return a user's quota and usage."""
    caller.require(Action.READ_QUOTA, ProtectedResource.of_user(user))
    with service.store.read() as unit:
        return quotas.make_quota_view(unit, user, service.settings.quota)


@router.put("/quotas/{user}", tags=["access"], responses=problem_responses(422))
def put_quota(user: UserName, limits: QuotaLimits, caller: CurrentCaller, service: CurrentService) -> QuotaView:
    """Set a user's quota. For a limit that the body omits, the limit in the service's settings applies."""
    caller.require(Action.SET_QUOTA, ProtectedResource.of_user(user))
    with service.store.change(who=caller.who) as unit:
        quotas.put_quota(unit, user, limits)
        view = quotas.make_quota_view(unit, user, service.settings.quota)
    log.info("quota_put", user=user, by=caller.who)
    return view
