"""Sites and their pools."""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.access.rights import Action, may
from sbf_service.http.caller import Caller, Who
from sbf_service.http.problems import answers
from sbf_service.http.subjects import of_site
from sbf_service.service import Service
from sbf_service.store.pools import put_pool, site_view
from sbf_service.store.quarantine import say_clean
from sbf_service.store.reading import read_topology
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import CleanWord, Pool, SiteView


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/sites", tags=["sites"])

    @router.get(
        "",
        operation_id="list_sites",
        summary="List sites with the state of their pools",
        responses=answers(HTTPStatus.NOT_FOUND),
    )
    def show_all(caller: Who) -> list[SiteView]:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return [_shown(site_view(unit, site, service.reserved), caller) for site in read_topology(unit).sites]

    @router.get(
        "/{name}",
        operation_id="get_site",
        summary="Look at a site and the state of its pool",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: Who) -> SiteView:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return _shown(site_view(unit, read_topology(unit).site(name), service.reserved), caller)

    @router.post(
        "/{name}/quarantine/{vlan}/clean",
        operation_id="say_clean",
        summary="Say, with a reason, that a number in quarantine is clean at a site; the caller's name is kept with it",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def clean(name: Name, vlan: VlanId, word: CleanWord, caller: Who) -> SiteView:
        caller.must(Action.SAY_CLEAN, of_site(name))
        with service.store.change(who=caller.who) as unit:
            site = read_topology(unit).site(name)
            say_clean(unit, name, vlan, word.reason, service.settings.timing.drain)
            return site_view(unit, site, service.reserved)

    @router.put(
        "/{name}/pool",
        operation_id="put_pool",
        summary="Say which VLAN numbers a site gives to virtual clusters",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def put(name: Name, pool: Pool, caller: Who) -> Pool:
        caller.must(Action.SET_POOL, of_site(name))
        with service.store.change(who=caller.who) as unit:
            put_pool(unit, name, pool, service.reserved)
        return pool

    @router.get(
        "/{name}/pool",
        operation_id="get_pool",
        summary="Read which VLAN numbers a site gives to virtual clusters",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get_pool(name: Name, caller: Who) -> Pool:
        caller.must(Action.READ_SITES)
        with service.store.read() as unit:
            return Pool(vlans=site_view(unit, read_topology(unit).site(name), service.reserved).pool)

    return router


def _shown(view: SiteView, caller: Caller) -> SiteView:
    """Leave out whose clusters keep numbers back, and what others use them for, for those who may not know."""
    may_see = may(caller.principal, Action.READ_QUARANTINE, of_site(view.name))
    return view if may_see else view.model_copy(update={"quarantine": (), "other_use": ()})
