"""Clusters: ask for one, look at it, end it."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.http.poll import After, Wait, newer
from sbf_service.http.problems import answers
from sbf_service.service import Service
from sbf_service.store import clusters
from sbf_service.store.previews import preview_cluster
from virtcloud.model.cluster import ENDED, ClusterRequest, LeaseExtension
from virtcloud.model.preview import ClusterPreview
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView

Key = Annotated[ClusterKey, Path(description="The caller's own name for the cluster.")]
DryRun = Annotated[bool, Query(description="Only say what would happen: the number, and the change of each element.")]


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/clusters", tags=["clusters"])

    @router.put(
        "/{key}",
        operation_id="put_cluster",
        summary="Ask for a cluster; the same again changes nothing",
        status_code=HTTPStatus.CREATED,
        responses={
            HTTPStatus.OK: {"model": ClusterView | ClusterPreview, "description": "It was there already; or a dry run"},
            **answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY),
        },
    )
    def put(
        key: Key, request: ClusterRequest, response: Response, dry_run: DryRun = False
    ) -> ClusterView | ClusterPreview:
        if dry_run:
            response.status_code = HTTPStatus.OK
            with service.store.read() as unit:
                return preview_cluster(unit, key, request, service.reserved)
        made = clusters.put_cluster(service.store, key, request, service.reserved, who=request.spec.owner)
        response.status_code = HTTPStatus.CREATED if made.created else HTTPStatus.OK
        return made.view

    @router.get(
        "/{key}",
        operation_id="get_cluster",
        summary="Look at a cluster, or wait for a newer version of it",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def get(key: Key, after: After = None, wait: Wait = 0) -> ClusterView:
        def version() -> int:
            with service.store.read() as unit:
                return clusters.version_of(unit, key)

        def show() -> ClusterView:
            with service.store.read() as unit:
                return clusters.get_cluster(unit, key)

        await newer(service.notifier, f"cluster:{key}", version, after, wait)
        return await run_in_threadpool(show)

    @router.get(
        "",
        operation_id="list_clusters",
        summary="List clusters, oldest first",
        responses=answers(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def show_all(
        owner: Annotated[str | None, Query(description="Only this owner's.")] = None,
        ended: Annotated[bool, Query(description="Also those that have ended.")] = False,
    ) -> list[ClusterView]:
        with service.store.read() as unit:
            return clusters.list_clusters(unit, owner, ended=ended)

    @router.delete(
        "/{key}",
        operation_id="delete_cluster",
        summary="End a cluster; the same again changes nothing",
        status_code=HTTPStatus.ACCEPTED,
        responses={
            HTTPStatus.OK: {"model": ClusterView, "description": "It had ended already"},
            **answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
        },
    )
    def delete(key: Key, response: Response) -> ClusterView:
        with service.store.change(who="api") as unit:
            view = clusters.delete_cluster(unit, key, "ended by its user")
        response.status_code = HTTPStatus.OK if view.state in ENDED else HTTPStatus.ACCEPTED
        return view

    @router.post(
        "/{key}/lease",
        operation_id="extend_lease",
        summary="Let a cluster last so many seconds from now; a lease is never shortened",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def extend(key: Key, extension: LeaseExtension) -> ClusterView:
        with service.store.change(who="api") as unit:
            return clusters.extend_lease(unit, key, extension.seconds)

    return router
