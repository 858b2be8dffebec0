"""Sites and their pools."""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import Caller, CurrentCaller, site_subject
from sbf_service.http.problems import problem_responses
from sbf_service.store.pools import make_site_view, put_pool
from sbf_service.store.quarantine import declare_clean
from sbf_service.store.unit_of_work import read_topology
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import CleanDeclaration, Pool, SiteView


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/sites", tags=["sites"])

    @router.get(
        "",
        operation_id="list_sites",
        summary="List sites with the state of their pools",
        responses=problem_responses(HTTPStatus.NOT_FOUND),
    )
    def show_all(caller: CurrentCaller) -> list[SiteView]:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return [_shown(make_site_view(unit, site, service.reserved), caller) for site in read_topology(unit).sites]

    @router.get(
        "/{name}",
        operation_id="get_site",
        summary="Look at a site and the state of its pool",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: CurrentCaller) -> SiteView:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return _shown(make_site_view(unit, read_topology(unit).site(name), service.reserved), caller)

    @router.post(
        "/{name}/quarantine/{vlan}/clean",
        operation_id="say_clean",
        summary="Say, with a reason, that a number in quarantine is clean at a site; the caller's name is kept with it",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def clean(name: Name, vlan: VlanId, word: CleanDeclaration, caller: CurrentCaller) -> SiteView:
        caller.must(Action.DECLARE_CLEAN, site_subject(name))
        with service.store.change(who=caller.who) as unit:
            site = read_topology(unit).site(name)
            declare_clean(unit, name, vlan, word.reason, service.settings.timing.drain)
            return make_site_view(unit, site, service.reserved)

    @router.put(
        "/{name}/pool",
        operation_id="put_pool",
        summary="Say which VLAN numbers a site gives to virtual clusters",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def put(name: Name, pool: Pool, caller: CurrentCaller) -> Pool:
        caller.must(Action.SET_POOL, site_subject(name))
        with service.store.change(who=caller.who) as unit:
            put_pool(unit, name, pool, service.reserved)
        return pool

    @router.get(
        "/{name}/pool",
        operation_id="get_pool",
        summary="Read which VLAN numbers a site gives to virtual clusters",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get_pool(name: Name, caller: CurrentCaller) -> Pool:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return Pool(vlans=make_site_view(unit, read_topology(unit).site(name), service.reserved).pool)

    return router


def _shown(view: SiteView, caller: Caller) -> SiteView:
    """Leave out whose clusters keep numbers back, and what others use them for, for those who may not know."""
    may_see = is_allowed(caller.principal, Action.READ_QUARANTINE, site_subject(view.name))
    return view if may_see else view.model_copy(update={"quarantine": (), "other_use": ()})
