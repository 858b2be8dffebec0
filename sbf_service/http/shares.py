"""Whom a cluster's network is shared with."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path

from sbf_service.access.rights import Action
from sbf_service.calls import Fence
from sbf_service.http.caller import Who
from sbf_service.http.clusters import Id, Key
from sbf_service.http.problems import answers
from sbf_service.http.subjects import must_in, must_on_cluster
from sbf_service.service import Service
from sbf_service.store import shares
from virtcloud.model.values import UserName
from virtcloud.model.views import ClusterView

User = Annotated[UserName, Path(description="Whose clusters may join.")]
FAULTS = answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY)


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/clusters/{key}/shares", tags=["clusters"])

    @router.put(
        "/{user}",
        operation_id="share_network",
        summary="Let a user's clusters join this cluster's network; the same again changes nothing",
        responses=FAULTS,
    )
    def share(key: Key, user: User, caller: Who, id: Id = None) -> ClusterView:  # noqa: A002 - the word of the API
        must_on_cluster(service.store, caller, Action.SHARE_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            must_in(unit, caller, Action.SHARE_CLUSTER, key)
            return shares.share(unit, key, user, service.settings.limits, Fence(id=id))

    @router.delete(
        "/{user}",
        operation_id="unshare_network",
        summary="Let a user's new clusters no longer join this cluster's network; those that joined stay",
        responses=FAULTS,
    )
    def unshare(key: Key, user: User, caller: Who, id: Id = None) -> ClusterView:  # noqa: A002 - the word of the API
        must_on_cluster(service.store, caller, Action.SHARE_CLUSTER, key)
        with service.store.change(who=caller.who) as unit:
            must_in(unit, caller, Action.SHARE_CLUSTER, key)
            return shares.unshare(unit, key, user, Fence(id=id))

    return router
