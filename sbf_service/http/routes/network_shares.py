"""Shares of a cluster's network: the users whose clusters may join the network."""

from fastapi import APIRouter

from sbf_service.domain.idempotency import AttemptFence
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, change_cluster
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath, UserPath
from sbf_service.store.clusters import clusters
from virtcloud.model.views import ClusterView

router = APIRouter(prefix="/v1/clusters", tags=["clusters"], route_class=Operation)


@router.put("/{key}/shares/{user}", responses=problem_responses(404, 409, 410, 422))
def share_network(
    key: KeyPath,
    user: UserPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterView:
    """Allow a user's clusters to join this cluster's network; idempotent."""
    with change_cluster(service.store, caller, Action.SHARE_CLUSTER, key) as unit:
        return clusters.share_network(unit, key, user, service.settings.limits, AttemptFence(id=id))


@router.delete("/{key}/shares/{user}", responses=problem_responses(404, 409, 410, 422))
def unshare_network(
    key: KeyPath,
    user: UserPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> ClusterView:
    """Forbid new clusters of a user to join this cluster's network. Clusters that have already joined remain."""
    with change_cluster(service.store, caller, Action.SHARE_CLUSTER, key) as unit:
        return clusters.unshare_network(unit, key, user, AttemptFence(id=id))
