"""Sites and their pools."""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.http.problems import answers
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
    def show_all() -> list[SiteView]:
        with service.store.read() as unit:
            return [site_view(unit, site, service.reserved) for site in read_topology(unit).sites]

    @router.get(
        "/{name}",
        operation_id="get_site",
        summary="Look at a site and the state of its pool",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name) -> SiteView:
        with service.store.read() as unit:
            return site_view(unit, read_topology(unit).site(name), service.reserved)

    @router.post(
        "/{name}/quarantine/{vlan}/clean",
        operation_id="say_clean",
        summary="Say, by name and with a reason, that a number in quarantine is clean at a site",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def clean(name: Name, vlan: VlanId, word: CleanWord) -> SiteView:
        with service.store.change(who=word.by) as unit:
            site = read_topology(unit).site(name)
            say_clean(unit, name, vlan, word.reason, service.settings.timing.drain)
            return site_view(unit, site, service.reserved)

    @router.put(
        "/{name}/pool",
        operation_id="put_pool",
        summary="Say which VLAN numbers a site gives to virtual clusters",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def put(name: Name, pool: Pool) -> Pool:
        with service.store.change(who="api") as unit:
            put_pool(unit, name, pool, service.reserved)
        return pool

    @router.get(
        "/{name}/pool",
        operation_id="get_pool",
        summary="Read which VLAN numbers a site gives to virtual clusters",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get_pool(name: Name) -> Pool:
        with service.store.read() as unit:
            return Pool(vlans=site_view(unit, read_topology(unit).site(name), service.reserved).pool)

    return router
