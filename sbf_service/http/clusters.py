"""Clusters: ask for one, look at it, end it."""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.access.limits import check_spec
from sbf_service.access.rights import Action, may
from sbf_service.calls import Fence
from sbf_service.http.caller import Caller, Who
from sbf_service.http.poll import After, Wait, newer
from sbf_service.http.problems import answers
from sbf_service.http.subjects import (
    must_in,
    must_list_clusters,
    must_on_cluster,
    starter_of,
    still_seen,
    subject_of,
    subject_of_request,
    within,
)
from sbf_service.service import Service
from sbf_service.store import clusters
from sbf_service.store.history import Page
from sbf_service.store.previews import preview_cluster
from virtcloud.model.cluster import ENDED, ClusterRequest, LeaseExtension
from virtcloud.model.errors import Forbidden
from virtcloud.model.preview import ClusterPreview
from virtcloud.model.values import ClusterKey, UserName
from virtcloud.model.views import ClusterView

Key = Annotated[ClusterKey, Path(description="The caller's own name for the cluster.")]
Attempt = Annotated[int | None, Query(ge=0, description="The caller's attempt; one that is over is 410.")]
Owner = Annotated[UserName | None, Query(description="Whose cluster is meant; 410 when the key is another's since.")]
Id = Annotated[
    str | None,
    Query(
        pattern="^[0-9a-z-]{1,63}$",
        description="Which cluster is meant, exactly; 410 when the key is another one's since.",
    ),
]
DryRun = Annotated[bool, Query(description="Only say what would happen: the number, and the change of each element.")]


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/clusters", tags=["clusters"])
    quota = service.settings.quota

    @router.put(
        "/{key}",
        operation_id="put_cluster",
        summary="Ask for a cluster; the same again changes nothing",
        status_code=HTTPStatus.CREATED,
        response_model=ClusterView | ClusterPreview,
        responses={
            HTTPStatus.OK: {"model": ClusterView | ClusterPreview, "description": "It was there already; or a dry run"},
            **answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY),
        },
    )
    async def put(key: Key, request: ClusterRequest, caller: Who, dry_run: DryRun = False) -> Response:
        caller.must(Action.CREATE_CLUSTER, subject_of_request(request))
        caller.may_create_now()
        check_spec(service.settings.limits, request.spec)
        if dry_run:
            return await run_in_threadpool(_preview, service, key, request, caller)
        return await run_in_threadpool(_put, service, key, request, caller)

    @router.get(
        "/{key}",
        operation_id="get_cluster",
        summary="Look at a cluster, or wait for a newer version of it",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def get(
        key: Key,
        caller: Who,
        after: After = None,
        wait: Wait = 0,
        id: Annotated[  # noqa: A002 - the word of the API
            str | None, Query(pattern="^[0-9a-z-]{1,63}$", description="An earlier cluster under this key, by its id.")
        ] = None,
    ) -> ClusterView:
        def version() -> int:
            with service.store.read() as unit:
                return clusters.version_of(unit, key, id)

        def show() -> ClusterView:
            with service.store.read() as unit:
                return clusters.get_cluster(unit, key, id)

        await run_in_threadpool(must_on_cluster, service.store, caller, Action.READ_CLUSTER, key, id)
        await newer(service.notifier, f"cluster:{key}", version, after, wait)
        return still_seen(caller, await run_in_threadpool(show))

    @router.get(
        "",
        operation_id="list_clusters",
        summary="List clusters, oldest first",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def show_all(  # noqa: PLR0913, PLR0917 - FastAPI gives each parameter by its name
        caller: Who,
        owner: Annotated[UserName | None, Query(description="Only this owner's.")] = None,
        ended: Annotated[bool, Query(description="Also those that have ended.")] = False,
        network: Annotated[
            ClusterKey | None, Query(description="Only the cluster of this name or key; nothing when it has ended.")
        ] = None,
        limit: Annotated[
            int, Query(ge=1, le=1000, description="With `ended`: how many at most, the newest ones.")
        ] = 100,
        before: Annotated[
            str | None,
            Query(
                pattern="^[0-9a-z-]{1,63}$", description="With `ended`: only those older than the cluster of this id."
            ),
        ] = None,
    ) -> list[ClusterView]:
        chosen = must_list_clusters(caller, owner)
        with service.store.read() as unit:
            if network is None:
                found = clusters.list_clusters(unit, chosen, Page(limit, before) if ended else None, within(caller))
            else:
                found = [one for one in clusters.list_network(unit, network) if owner in {None, one.spec.owner}]
        return [view for view in found if may(caller.principal, Action.READ_CLUSTER, subject_of(view))]

    @router.delete(
        "/{key}",
        operation_id="delete_cluster",
        summary="End a cluster; the same again changes nothing",
        status_code=HTTPStatus.ACCEPTED,
        responses={
            HTTPStatus.OK: {"model": ClusterView, "description": "It had ended already"},
            **answers(HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY),
        },
    )
    def delete(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
        key: Key,
        response: Response,
        caller: Who,
        attempt: Attempt = None,
        owner: Owner = None,
        id: Id = None,  # noqa: A002 - the word of the API
    ) -> ClusterView:
        must_on_cluster(service.store, caller, Action.END_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            must_in(unit, caller, Action.END_CLUSTER, key)
            view = clusters.delete_cluster(unit, key, f"ended by {caller.who}", Fence(attempt, owner, id))
        response.status_code = HTTPStatus.OK if view.state in ENDED else HTTPStatus.ACCEPTED
        return view

    @router.post(
        "/{key}/lease",
        operation_id="extend_lease",
        summary="Extend a cluster's lease to so many seconds from now; a lease is never shortened",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def extend(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
        key: Key,
        extension: LeaseExtension,
        caller: Who,
        attempt: Attempt = None,
        owner: Owner = None,
        id: Id = None,  # noqa: A002 - the word of the API
    ) -> ClusterView:
        must_on_cluster(service.store, caller, Action.EXTEND_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            must_in(unit, caller, Action.EXTEND_CLUSTER, key)
            return clusters.extend_lease(unit, key, extension.seconds, quota, Fence(attempt, owner, id))

    return router


def _put(service: Service, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    limits = service.settings.quota
    made = clusters.put_cluster(
        service.store,
        key,
        request,
        service.reserved,
        caller.who,
        quota=limits,
        sees=caller.sees,
        starter=starter_of(caller),
    )
    return _answer(HTTPStatus.CREATED if made.created else HTTPStatus.OK, made.view)


def _preview(service: Service, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    if starter_of(caller) is not None:
        raise Forbidden(f"{caller.principal} may not make a dry run: it asks for the clusters of jobs")
    limits = service.settings.quota
    with service.store.read() as unit:
        found = preview_cluster(
            replace(unit, who=caller.who),
            key,
            request,
            service.reserved,
            limits,
            sees=caller.sees,
            whole=caller.reaches_all(Action.READ_CLUSTER),
        )
        return _answer(HTTPStatus.OK, found)


def _answer(status: HTTPStatus, shown: ClusterView | ClusterPreview) -> Response:
    """Write a document once: it was checked when it was made, which a framework would do again, in another thread."""
    return Response(shown.model_dump_json(), status, media_type="application/json")
