"""Clusters that an element refuses for good while they are set up: they fail at once, with its words."""

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import or_

from sbf_service.settle import Move
from sbf_service.store.moves import make, settle_clusters
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Unit
from sbf_service.store.standing import clusters_where, on_element
from sbf_service.store.tables import ClusterRow
from virtcloud.model.cluster import State

MOST_WORDS = 1000


def fail_refused(unit: Unit, element: str, refused: Mapping[str, str], drain_deadline: timedelta) -> None:
    """Let those of ``refused`` (cluster ids, the element's words) fail that are being set up on ``element``.

    Others are left alone: one that was active is put back when it can be. Where a network is refused, so are its
    members: without it they cannot be there. May be repeated. Raises NotFound.
    """
    row = element_row(unit, element)
    theirs = or_(ClusterRow.id.in_(refused), ClusterRow.network.in_(refused))
    for cluster in clusters_where(unit, ClusterRow.state == State.CONFIGURING, theirs, on_element(element)):
        if cluster.state != State.CONFIGURING:
            continue  # it ended with its network, a moment ago
        words = (refused.get(cluster.id) or refused[str(cluster.network)])[:MOST_WORDS]
        make(unit, cluster, Move(State.FAILING, f"{row.kind} {element} at {row.site} refused: {words}"))
    settle_clusters(unit, drain_deadline, on_element(element))
