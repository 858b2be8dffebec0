"""Tokens, and who the caller is."""

import secrets
from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store import tokens
from virtcloud.model.access import Identity, NewToken, TokenId, TokenRequest, TokenView

log = get_log(__name__)


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1", tags=["access"])

    @router.get("/whoami", operation_id="who_am_i", summary="Say whom SBF takes the caller for")
    def who_am_i(caller: CurrentCaller) -> Identity:
        return caller.principal.identity

    @router.post(
        "/tokens",
        operation_id="create_token",
        summary="Make a token; it is in this answer only. Each call makes another one",
        status_code=HTTPStatus.CREATED,
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def create(request: TokenRequest, caller: CurrentCaller) -> NewToken:
        caller.must(Action.MANAGE_TOKENS)
        with service.store.change(who=caller.who) as unit:
            made = tokens.create_token(unit, request, secrets.token_bytes)
        log.info("token_created", id=made.id, name=made.name, role=made.role, by=caller.who)
        return made

    @router.get(
        "/tokens",
        operation_id="list_tokens",
        summary="List tokens, oldest first, also those that are valid no longer",
    )
    def show_all(caller: CurrentCaller) -> list[TokenView]:
        caller.must(Action.MANAGE_TOKENS)
        with service.store.read() as unit:
            return tokens.list_tokens(unit)

    @router.delete(
        "/tokens/{id}",
        operation_id="revoke_token",
        summary="Let a token be valid no longer; the same again changes nothing",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def revoke(id: TokenId, caller: CurrentCaller) -> TokenView:  # noqa: A002 - the word of the API
        caller.must(Action.MANAGE_TOKENS)
        with service.store.change(who=caller.who) as unit:
            found = tokens.revoke_token(unit, id)
        log.info("token_revoked", id=found.id, name=found.name, role=found.role, by=caller.who)
        return found

    return router
