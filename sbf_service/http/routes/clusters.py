"""Clusters: create, read, list and delete them, and extend their leases."""

from collections.abc import Collection
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.admission import check_request_limits
from sbf_service.domain.idempotency import AttemptFence
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import (
    CurrentCaller,
    CurrentService,
    authorize_cluster,
    authorize_in_unit,
    change_cluster_scope,
    describe_request,
    find_job_starter,
    require_known_names,
    require_visible,
    restrict_to_visible,
)
from sbf_service.http.auth.caller import Caller
from sbf_service.http.large_bodies import LargeBodyOperation
from sbf_service.http.long_polls import CurrentPoll, LongPoll
from sbf_service.http.operations import CLUSTER_ID, After, Wait
from sbf_service.http.pages import PAGES, CurrentPage, OrderQuery, answer_list
from sbf_service.http.problems import problem_responses
from sbf_service.store.clusters import cluster_creation, clusters
from sbf_service.store.clusters.cluster_dry_run import dry_run_cluster
from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest, read_cluster_page
from sbf_service.store.clusters.transitions import state_topic
from sbf_service.store.networks.service_nodes import add_mounts
from sbf_service.store.pages import Page, PagePart, read_all_pages
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.changes import ClusterDryRun
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterState, LeaseExtension
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView

KeyPath = Annotated[ClusterKey, Path(description="The caller's name for the cluster.")]
UserPath = Annotated[UserName, Path(description="The user whose clusters may join the network.")]
AttemptQuery = Annotated[
    int | None, Query(ge=0, description="The caller's attempt number; 410 if SBF has received a later attempt.")
]
OwnerQuery = Annotated[
    UserName | None, Query(description="The cluster's owner; 410 if the key belongs to another owner now.")
]
IdQuery = Annotated[
    str | None,
    Query(pattern=CLUSTER_ID, description="The cluster's ID; 410 if the key belongs to another cluster now."),
]
UntilQuery = Annotated[
    tuple[ClusterState, ...],
    Query(
        description="With `after` and `wait`: wait until the cluster has one of these states. Without `until`, any "
        "change ends the wait."
    ),
]
EarlierIdQuery = Annotated[
    str | None, Query(pattern=CLUSTER_ID, description="The ID of an earlier cluster with this key.")
]
DryRunQuery = Annotated[
    bool, Query(description="Only compute the VLAN IDs and the change of each element; create nothing.")
]
ListOwnerQuery = Annotated[UserName | None, Query(description="Only clusters of this owner.")]
EndedQuery = Annotated[bool, Query(description="Also return clusters that have ended.")]
NetworkQuery = Annotated[
    ClusterKey | None,
    Query(description="Only clusters of the network with this name or key; no clusters if the network has ended."),
]
StateQuery = Annotated[ClusterState | None, Query(description="Only clusters in this state.")]
SiteQuery = Annotated[Name | None, Query(description="Only clusters with an element at this site.")]
ElementQuery = Annotated[Name | None, Query(description="Only clusters on this element.")]
BeforeQuery = Annotated[
    str | None,
    Query(
        pattern=CLUSTER_ID,
        description="With `ended`, without `order`: only clusters older than the cluster with this ID.",
    ),
]

router = APIRouter(prefix="/v1/clusters", tags=["clusters"], route_class=LargeBodyOperation)


@router.put(
    "/{key}",
    status_code=HTTPStatus.CREATED,
    response_model=ClusterView | ClusterDryRun,
    responses={
        200: {"model": ClusterView | ClusterDryRun, "description": "The existing cluster, or a dry run"},
        **problem_responses(404, 409, 410, 422),
    },
)
async def put_cluster(
    key: KeyPath, request: ClusterRequest, caller: CurrentCaller, service: CurrentService, dry_run: DryRunQuery = False
) -> Response:
    """Create a cluster; idempotent."""
    caller.require(Action.CREATE_CLUSTER, describe_request(request))
    caller.count_creation()
    check_request_limits(service.settings.limits, request.spec)
    action = _dry_run if dry_run else _create
    return await run_in_threadpool(action, service, key, request, caller)


def _create(service: SbfService, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    result = cluster_creation.put_cluster(
        service.store,
        key,
        request,
        service.reserved,
        caller.who,
        quota=service.settings.quota,
        sees=caller.may_read_clusters_of,
        starter=find_job_starter(caller),
        overcommit=service.settings.placement,
        limits=service.settings.limits,
    )
    return _respond(HTTPStatus.CREATED if result.created else HTTPStatus.OK, result.view)


def _dry_run(service: SbfService, key: ClusterKey, request: ClusterRequest, caller: Caller) -> Response:
    if find_job_starter(caller) is not None:
        raise Forbidden(f"{caller.principal} may not request a dry run: this role may only create clusters of jobs")
    with service.store.read() as unit:
        result = dry_run_cluster(
            replace(unit, who=caller.who),
            key,
            request,
            service.reserved,
            service.settings.quota,
            sees=caller.may_read_clusters_of,
            whole=caller.is_unrestricted(Action.READ_CLUSTER),
            overcommit=service.settings.placement,
            limits=service.settings.limits,
        )
        return _respond(HTTPStatus.OK, result)


def _respond(status: HTTPStatus, document: ClusterView | ClusterDryRun) -> Response:
    """Serialize ``document`` here, because FastAPI would validate the document again, in another thread."""
    return Response(document.model_dump_json(), status, media_type="application/json")


@router.get("/{key}", response_model=ClusterView, responses=problem_responses(404, 422))
async def get_cluster(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    poll: CurrentPoll,
    after: After = None,
    wait: Wait = 0,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
    until: UntilQuery = (),
) -> Response:
    """Return a cluster, or wait for a newer version of the cluster."""
    return _respond(HTTPStatus.OK, await wait_for_cluster(key, caller, service, poll, after, wait, id, until))


async def wait_for_cluster(  # noqa: PLR0913, PLR0917 - the parameters of the call
    key: ClusterKey,
    caller: Caller,
    service: SbfService,
    poll: LongPoll,
    after: int | None = None,
    wait: float = 0,
    cluster_id: str | None = None,
    until: Collection[ClusterState] = (),
) -> ClusterView:
    """Return a cluster, or wait for a newer version; see :func:`get_cluster`."""
    newer: ClusterView | None = None

    def read_version() -> int:
        """Return the cluster's version. If it ends the wait, also read the view in the same transaction."""
        nonlocal newer
        with service.store.read() as unit:
            row = clusters.require_cluster(unit, key, cluster_id)
            if after is not None and row.version > after and (not until or row.state in until):
                newer = add_mounts(unit, clusters.make_cluster_view(unit, row))
            return row.version

    def read_view() -> ClusterView:
        with service.store.read() as unit:
            return add_mounts(unit, clusters.get_cluster(unit, key, cluster_id))

    await run_in_threadpool(authorize_cluster, service.store, caller, Action.READ_CLUSTER, key, cluster_id)
    topic = state_topic(key) if until else f"cluster:{key}"
    version = poll.in_thread(read_version)
    await poll.wait_until_newer(
        topic, version, after, wait, is_exact=cluster_id is None, is_awaited=lambda: newer is not None
    )
    return require_visible(caller, await poll.read(read_view) if newer is None else newer)


@router.get("/{key}/peers", responses=problem_responses(404, 409, 422))
def get_peers(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterPeers:
    """Return the login name in a cluster's guests, and all guests of its network with their public host keys."""
    with service.store.read() as unit:
        authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, id)
        return clusters.read_peers(unit, key, id)


@router.get("", response_model=list[ClusterView], responses={**PAGES, **problem_responses(404, 422)})
def list_clusters(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    caller: CurrentCaller,
    service: CurrentService,
    page: CurrentPage,
    owner: ListOwnerQuery = None,
    ended: EndedQuery = False,
    network: NetworkQuery = None,
    state: StateQuery = None,
    site: SiteQuery = None,
    element: ElementQuery = None,
    order: OrderQuery = None,
    before: BeforeQuery = None,
) -> Response:
    """List clusters.

    With `order`, the answer is a page of `limit` clusters. With neither `order` nor `ended`, the answer has all
    clusters that have not ended, oldest first. With `ended` but without `order`, the answer has the newest `limit`
    clusters of all states, oldest first.
    """
    requested = ClusterFilter(owner, ended, state, site=site, on=element, network=network)
    visible = restrict_to_visible(caller, requested)
    require_known_names(service.store, caller, site, element)

    def read(part: PagePart) -> Page[ClusterView]:
        with service.store.read() as unit:
            return read_cluster_page(unit, visible, part, newest_first=order == "newest")

    if order is not None:
        return page.answer_page(ClusterView, read)
    if page.cursor is not None:
        raise BadInput("cursor: expected 'order' with the cursor, got none: use the address in the Link header")
    if visible.includes_ended:
        with service.store.read() as unit:
            newest = list_newest(unit, visible, page.part.limit, before)
        return answer_list(ClusterView, [newest])
    return answer_list(ClusterView, read_all_pages(read))


@router.delete(
    "/{key}",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        200: {"model": ClusterView, "description": "The cluster had ended already"},
        **problem_responses(404, 410, 422),
    },
)
def delete_cluster(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    response: Response,
    caller: CurrentCaller,
    service: CurrentService,
    attempt: AttemptQuery = None,
    owner: OwnerQuery = None,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterView:
    """Delete a cluster; idempotent."""
    fence = AttemptFence(attempt, owner, id)

    def delete(unit: Unit) -> ClusterView:
        return clusters.delete_cluster(unit, key, f"ended by {caller.who}", fence)

    view = change_cluster_scope(service.store, caller, Action.END_CLUSTER, key, delete)
    response.status_code = HTTPStatus.OK if view.state in ENDED_STATES else HTTPStatus.ACCEPTED
    return view


@router.post("/{key}/lease", responses=problem_responses(404, 409, 410, 422))
def extend_lease(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    extension: LeaseExtension,
    caller: CurrentCaller,
    service: CurrentService,
    attempt: AttemptQuery = None,
    owner: OwnerQuery = None,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterView:
    """Extend a cluster's lease to at least a number of seconds from now. The lease is never shortened."""
    fence = AttemptFence(attempt, owner, id)

    def extend(unit: Unit) -> ClusterView:
        return clusters.extend_lease(unit, key, extension.seconds, service.settings.quota, fence)

    return change_cluster_scope(service.store, caller, Action.EXTEND_CLUSTER, key, extend)
