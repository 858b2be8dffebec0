"""Whom a cluster's network is shared with."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path

from sbf_service.bootstrap import SbfService
from sbf_service.domain.idempotency import AttemptFence
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, authorize_cluster, authorize_cluster_in
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import Id, Key
from sbf_service.store import clusters
from virtcloud.model.values import UserName
from virtcloud.model.views import ClusterView

User = Annotated[UserName, Path(description="Whose clusters may join.")]
FAULTS = problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY)


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/clusters/{key}/shares", tags=["clusters"])

    @router.put(
        "/{user}",
        operation_id="share_network",
        summary="Let a user's clusters join this cluster's network; the same again changes nothing",
        responses=FAULTS,
    )
    def share(key: Key, user: User, caller: CurrentCaller, id: Id = None) -> ClusterView:  # noqa: A002 - the word of the API
        authorize_cluster(service.store, caller, Action.SHARE_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            authorize_cluster_in(unit, caller, Action.SHARE_CLUSTER, key)
            return clusters.share_network(unit, key, user, service.settings.limits, AttemptFence(id=id))

    @router.delete(
        "/{user}",
        operation_id="unshare_network",
        summary="Let a user's new clusters no longer join this cluster's network; those that joined stay",
        responses=FAULTS,
    )
    def unshare(key: Key, user: User, caller: CurrentCaller, id: Id = None) -> ClusterView:  # noqa: A002 - the word of the API
        authorize_cluster(service.store, caller, Action.SHARE_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            authorize_cluster_in(unit, caller, Action.SHARE_CLUSTER, key)
            return clusters.unshare_network(unit, key, user, AttemptFence(id=id))

    return router
