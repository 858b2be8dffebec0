"""Numbers that are kept back, and an administrator's word that one is clean (docs/decisions/0012)."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, select

from sbf_service.settle import Part
from sbf_service.store.audit import record
from sbf_service.store.moves import settle_clusters, touch_clusters
from sbf_service.store.session import Unit
from sbf_service.store.standing import clusters_where, parts_of
from sbf_service.store.tables import ClaimRow, ClusterRow, PlacementRow
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, Name, VlanId
from virtcloud.model.views import Progress, Quarantine


def quarantine_of(unit: Unit, site: str) -> tuple[Quarantine, ...]:
    """Say which numbers a site keeps back, for which cluster and because of which elements, since when."""
    claims = select(ClaimRow, ClusterRow).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    kept = claims.where(ClaimRow.site == site, ClusterRow.quarantined).order_by(ClaimRow.vlan)
    rows = [(claim, cluster) for claim, cluster in unit.session.execute(kept)]
    parts = parts_of(unit, [cluster.id for _, cluster in rows])
    return tuple(_quarantine(claim, cluster, parts.get(cluster.id, ())) for claim, cluster in rows)


def say_clean(unit: Unit, site: str, vlan: VlanId, reason: str, drain_deadline: timedelta) -> None:
    """Take an administrator's word for the elements of ``site`` that have not confirmed; may be repeated.

    The number's cluster gives all its numbers back once the elements of its other sites have confirmed, or are said to
    be clean too. What the elements still carry is taken off them when they come back. Raises Conflict for a number
    that a cluster has which has not ended.
    """
    row = _holder(unit, site, vlan)
    if row is None:
        return
    if not row.quarantined:
        raise Conflict(
            f"VLAN {vlan} at {site} is not in quarantine: cluster {row.key} has it and is {row.state}; "
            f"end the cluster, and wait until it has ended"
        )
    owing = [part for part in _owing(unit, row) if part.site == site]
    for part in owing:
        _vouch(unit, row, part, f"VLAN {vlan} at {site}: {reason}")
    unit.session.flush()
    if owing:
        this = ClusterRow.id == row.id
        touch_clusters(unit, this)
        settle_clusters(unit, drain_deadline, this)


def _holder(unit: Unit, site: str, vlan: VlanId) -> ClusterRow | None:
    claim = unit.session.get(ClaimRow, (site, vlan))
    return None if claim is None else clusters_where(unit, ClusterRow.id == claim.cluster_id)[0]


def _owing(unit: Unit, row: ClusterRow) -> Sequence[Part]:
    return [part for part in parts_of(unit, [row.id]).get(row.id, ()) if part.progress is not Progress.REMOVED]


def _vouch(unit: Unit, row: ClusterRow, part: Part, why: str) -> None:
    """Let the cluster wait for this element no longer; the element's own revisions stay, so that it is still mended."""
    unit.session.execute(
        delete(PlacementRow).where(PlacementRow.cluster_id == row.id, PlacementRow.element == part.element)
    )
    record(unit, "number_said_clean", why=why, element=part.element, cluster_id=row.id)


def _quarantine(claim: ClaimRow, row: ClusterRow, parts: Sequence[Part]) -> Quarantine:
    return Quarantine(
        vlan=VlanId(claim.vlan),
        cluster=ClusterKey(row.key),
        cluster_id=row.id,
        since=row.leaving_since or row.created_at,
        elements={part.element: Name(part.site) for part in parts if part.progress is not Progress.REMOVED},
    )
