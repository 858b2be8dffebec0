"""Clusters that an element refuses for good while they are set up: they fail at once, with its words."""

from collections.abc import Mapping
from datetime import timedelta

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

    Others are left alone: one that was active is put back when it can be. May be repeated. Raises NotFound.
    """
    row = element_row(unit, element)
    waiting = ClusterRow.state == State.CONFIGURING, ClusterRow.id.in_(refused), on_element(element)
    for cluster in clusters_where(unit, *waiting):
        words = refused[cluster.id][:MOST_WORDS]
        make(unit, cluster, Move(State.FAILING, f"{row.kind} {element} at {row.site} refused: {words}"))
    settle_clusters(unit, drain_deadline, on_element(element))
