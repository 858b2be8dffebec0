"""Numbers that are kept back, and an administrator's word that one is clean (docs/decisions/0012)."""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import delete, or_, select

from sbf_service.settle import Part
from sbf_service.store.audit import record
from sbf_service.store.moves import settle_clusters, touch_clusters
from sbf_service.store.session import Unit
from sbf_service.store.standing import clusters_where, members_of, parts_of
from sbf_service.store.tables import ClaimRow, ClusterRow, PlacementRow
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, VlanId
from virtcloud.model.views import Progress, Quarantine


def quarantine_of(unit: Unit, site: str) -> tuple[Quarantine, ...]:
    """Say which numbers a site keeps back, for which cluster and because of which elements, since when."""
    claims = select(ClaimRow, ClusterRow).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    kept = claims.where(ClaimRow.site == site, ClusterRow.quarantined).order_by(ClaimRow.vlan)
    return tuple(_quarantine(claim, cluster, _owing(unit, cluster)) for claim, cluster in unit.session.execute(kept))


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
    owing = [(cluster_id, part) for cluster_id, part in _owing(unit, row) if part.site == site]
    for cluster_id, part in owing:
        _vouch(unit, cluster_id, part, f"VLAN {vlan} at {site}: {reason}")
    unit.session.flush()
    if owing:
        these = or_(ClusterRow.id == row.id, ClusterRow.network == row.id)
        touch_clusters(unit, these)
        settle_clusters(unit, drain_deadline, these)


def _holder(unit: Unit, site: str, vlan: VlanId) -> ClusterRow | None:
    claim = unit.session.get(ClaimRow, (site, vlan))
    return None if claim is None else clusters_where(unit, ClusterRow.id == claim.cluster_id)[0]


def _owing(unit: Unit, row: ClusterRow) -> list[tuple[str, Part]]:
    """Give the parts of a network, of its cluster and of its members, that elements have not confirmed to be gone."""
    ids = [row.id, *(member.id for member in members_of(unit, row.id))]
    return [
        (cluster_id, part)
        for cluster_id, parts in parts_of(unit, ids).items()
        for part in parts
        if part.progress is not Progress.REMOVED
    ]


def _vouch(unit: Unit, cluster_id: str, part: Part, why: str) -> None:
    """Let the cluster wait for this element no longer; the element's own revisions stay, so that it is still mended."""
    unit.session.execute(
        delete(PlacementRow).where(PlacementRow.cluster_id == cluster_id, PlacementRow.element == part.element)
    )
    record(unit, "number_said_clean", why=why, element=part.element, cluster_id=cluster_id)


def _quarantine(claim: ClaimRow, row: ClusterRow, owing: Iterable[tuple[str, Part]]) -> Quarantine:
    return Quarantine(
        vlan=VlanId(claim.vlan),
        cluster=ClusterKey(row.key),
        cluster_id=row.id,
        since=row.leaving_since or row.created_at,
        elements={part.element: part.site for _, part in owing},
    )
