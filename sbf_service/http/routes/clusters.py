"""Clusters: ask for one, look at it, end it."""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.admission import check_request_limits
from sbf_service.domain.idempotency import AttemptFence
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import (
    Caller,
    CurrentCaller,
    authorize_cluster,
    authorize_cluster_in,
    authorize_cluster_list,
    cluster_subject,
    job_starter_host,
    request_subject,
    require_visible,
    visible_clusters,
)
from sbf_service.http.conditional import After, Wait, wait_until_newer
from sbf_service.http.problems import problem_responses
from sbf_service.store import clusters
from sbf_service.store.cluster_dry_run import dry_run_cluster
from sbf_service.store.clusters import ClusterPage
from virtcloud.model.changes import ClusterDryRun
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, LeaseExtension
from virtcloud.model.errors import Forbidden
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


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/clusters", tags=["clusters"])
    quota = service.settings.quota

    @router.put(
        "/{key}",
        operation_id="put_cluster",
        summary="Ask for a cluster; the same again changes nothing",
        status_code=HTTPStatus.CREATED,
        response_model=ClusterView | ClusterDryRun,
        responses={
            HTTPStatus.OK: {"model": ClusterView | ClusterDryRun, "description": "It was there already; or a dry run"},
            **problem_responses(
                HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY
            ),
        },
    )
    async def put(key: Key, request: ClusterRequest, caller: CurrentCaller, dry_run: DryRun = False) -> Response:
        caller.must(Action.CREATE_CLUSTER, request_subject(request))
        caller.may_create_now()
        check_request_limits(service.settings.limits, request.spec)
        if dry_run:
            return await run_in_threadpool(_preview, service, key, request, caller)
        return await run_in_threadpool(_put, service, key, request, caller)

    @router.get(
        "/{key}",
        operation_id="get_cluster",
        summary="Look at a cluster, or wait for a newer version of it",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def get(
        key: Key,
        caller: CurrentCaller,
        after: After = None,
        wait: Wait = 0,
        id: Annotated[  # noqa: A002 - the word of the API
            str | None, Query(pattern="^[0-9a-z-]{1,63}$", description="An earlier cluster under this key, by its id.")
        ] = None,
    ) -> ClusterView:
        def version() -> int:
            with service.store.read() as unit:
                return clusters.read_cluster_version(unit, key, id)

        def show() -> ClusterView:
            with service.store.read() as unit:
                return clusters.get_cluster(unit, key, id)

        await run_in_threadpool(authorize_cluster, service.store, caller, Action.READ_CLUSTER, key, id)
        await wait_until_newer(service.change_feed, f"cluster:{key}", version, after, wait)
        return require_visible(caller, await run_in_threadpool(show))

    @router.get(
        "",
        operation_id="list_clusters",
        summary="List clusters, oldest first",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def show_all(  # noqa: PLR0913, PLR0917 - FastAPI gives each parameter by its name
        caller: CurrentCaller,
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
        chosen = authorize_cluster_list(caller, owner)
        with service.store.read() as unit:
            if network is None:
                found = clusters.list_clusters(
                    unit, chosen, ClusterPage(limit, before) if ended else None, visible_clusters(caller)
                )
            else:
                found = [one for one in clusters.list_network(unit, network) if owner in {None, one.spec.owner}]
        return [view for view in found if is_allowed(caller.principal, Action.READ_CLUSTER, cluster_subject(view))]

    @router.delete(
        "/{key}",
        operation_id="delete_cluster",
        summary="End a cluster; the same again changes nothing",
        status_code=HTTPStatus.ACCEPTED,
        responses={
            HTTPStatus.OK: {"model": ClusterView, "description": "It had ended already"},
            **problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY),
        },
    )
    def delete(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
        key: Key,
        response: Response,
        caller: CurrentCaller,
        attempt: Attempt = None,
        owner: Owner = None,
        id: Id = None,  # noqa: A002 - the word of the API
    ) -> ClusterView:
        authorize_cluster(service.store, caller, Action.END_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            authorize_cluster_in(unit, caller, Action.END_CLUSTER, key)
            view = clusters.delete_cluster(unit, key, f"ended by {caller.who}", AttemptFence(attempt, owner, id))
        response.status_code = HTTPStatus.OK if view.state in ENDED_STATES else HTTPStatus.ACCEPTED
        return view

    @router.post(
        "/{key}/lease",
        operation_id="extend_lease",
        summary="Extend a cluster's lease to so many seconds from now; a lease is never shortened",
        responses=problem_responses(
            HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY
        ),
    )
    def extend(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
        key: Key,
        extension: LeaseExtension,
        caller: CurrentCaller,
        attempt: Attempt = None,
        owner: Owner = None,
        id: Id = None,  # noqa: A002 - the word of the API
    ) -> ClusterView:
        authorize_cluster(service.store, caller, Action.EXTEND_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            authorize_cluster_in(unit, caller, Action.EXTEND_CLUSTER, key)
            return clusters.extend_lease(unit, key, extension.seconds, quota, AttemptFence(attempt, owner, id))

    return router


def _put(service: SbfService, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    limits = service.settings.quota
    made = clusters.put_cluster(
        service.store,
        key,
        request,
        service.reserved,
        caller.who,
        quota=limits,
        sees=caller.sees,
        starter=job_starter_host(caller),
    )
    return _answer(HTTPStatus.CREATED if made.created else HTTPStatus.OK, made.view)


def _preview(service: SbfService, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    if job_starter_host(caller) is not None:
        raise Forbidden(f"{caller.principal} may not make a dry run: it asks for the clusters of jobs")
    limits = service.settings.quota
    with service.store.read() as unit:
        found = dry_run_cluster(
            replace(unit, who=caller.who),
            key,
            request,
            service.reserved,
            limits,
            sees=caller.sees,
            whole=caller.reaches_all(Action.READ_CLUSTER),
        )
        return _answer(HTTPStatus.OK, found)


def _answer(status: HTTPStatus, shown: ClusterView | ClusterDryRun) -> Response:
    """Write a document once: it was checked when it was made, which a framework would do again, in another thread."""
    return Response(shown.model_dump_json(), status, media_type="application/json")
