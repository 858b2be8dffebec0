"""How much users may have."""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store import quotas
from virtcloud.model.access import QuotaLimits, QuotaView
from virtcloud.model.values import UserName

log = get_log(__name__)


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/quotas", tags=["access"])
    default = service.settings.quota

    @router.get("", operation_id="list_quotas", summary="List users who have a quota of their own")
    def show_all(caller: CurrentCaller) -> list[QuotaView]:
        caller.must(Action.READ_QUOTA, ProtectedResource("every user"))
        with service.store.read() as unit:
            return quotas.list_quotas(unit, default)

    @router.get(
        "/{user}",
        operation_id="get_quota",
        summary="Say how much a user may have, and has",
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(user: UserName, caller: CurrentCaller) -> QuotaView:
        caller.must(Action.READ_QUOTA, _of(user))
        with service.store.read() as unit:
            return quotas.make_quota_view(unit, user, default)

    @router.put(
        "/{user}",
        operation_id="put_quota",
        summary="Say how much a user may have; what is not given is as the service's settings say",
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def put(user: UserName, limits: QuotaLimits, caller: CurrentCaller) -> QuotaView:
        caller.must(Action.SET_QUOTA, _of(user))
        with service.store.change(who=caller.who) as unit:
            quotas.put_quota(unit, user, limits)
            found = quotas.make_quota_view(unit, user, default)
        log.info("quota_put", user=user, by=caller.who)
        return found

    return router


def _of(user: UserName) -> ProtectedResource:
    return ProtectedResource(user, owner=user)
