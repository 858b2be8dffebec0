"""Quarantined VLAN IDs, and their release by an administrator (docs/decisions/0012)."""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import delete, select

from sbf_service.domain.cluster_status import PlacementStatus
from sbf_service.store.clusters.cluster_queries import find_clusters, find_members
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.clusters.transitions import OF_NETWORK, apply_due_transitions, increment_versions
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.element_views import QuarantinedVlan
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, VlanId
from virtcloud.model.views import PlacementProgress


def read_quarantine(unit: Unit, site: str) -> tuple[QuarantinedVlan, ...]:
    """Return a site's quarantined VLAN IDs, with their former clusters and the elements that have not confirmed."""
    claims = select(ClaimRow, ClusterRow).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    quarantined = claims.where(ClaimRow.site == site, ClusterRow.quarantined).order_by(ClaimRow.vlan)
    return tuple(
        _make_quarantine(claim, cluster, _list_unconfirmed(unit, cluster))
        for claim, cluster in unit.session.execute(quarantined)
    )


def declare_clean(  # noqa: PLR0913, PLR0917 - the declaration with its deadline
    unit: Unit, site: str, vlan: VlanId, reason: str, drain_deadline: timedelta, cluster_id: str | None = None
) -> None:
    """Accept an administrator's declaration that a VLAN ID is clean on all elements of ``site``. Idempotent.

    SBF releases the claims of the former cluster when each of its elements has confirmed the removal, or is at a site
    with such a declaration. The worker or agent of an unreachable element removes remaining configuration later.

    While the network of the VLAN ID still runs, the declaration concerns only its ended members (clusters that joined
    it): they no longer wait for the elements of ``site``. Raise Conflict if the VLAN ID is claimed without quarantine,
    and no ended member waits for an element of ``site``.

    ``cluster_id`` is the cluster that the administrator named, or None. Raise Conflict if another cluster has the VLAN
    ID.
    """
    row = _find_holder(unit, site, vlan)
    if row is None:
        return
    if cluster_id not in {None, row.id}:
        raise Conflict(
            f"VLAN {vlan} at {site}: expected the quarantine of the cluster with ID {cluster_id}, found the later "
            f"cluster {row.key} with ID {row.id}: check the elements that may carry the VLAN of this cluster"
        )
    unconfirmed = [
        (cluster_id, placement) for cluster_id, placement in _list_unconfirmed(unit, row) if placement.site == site
    ]
    if not row.quarantined and not unconfirmed:
        raise Conflict(
            f"VLAN {vlan} at {site} is not in quarantine: cluster {row.key} uses the VLAN ID and is {row.state}; "
            f"end the cluster, and wait until it has ended"
        )
    for ended_id, placement in unconfirmed:
        _delete_placement(unit, ended_id, placement, f"VLAN {vlan} at {site}: {reason}")
    unit.session.flush()
    if unconfirmed:
        increment_versions(unit, OF_NETWORK, network_id=row.id)
        apply_due_transitions(unit, drain_deadline, OF_NETWORK, network_id=row.id)


def _find_holder(unit: Unit, site: str, vlan: VlanId) -> ClusterRow | None:
    claim = unit.session.get(ClaimRow, (site, vlan))
    return None if claim is None else find_clusters(unit, ClusterRow.id == claim.cluster_id)[0]


def _list_unconfirmed(unit: Unit, row: ClusterRow) -> list[tuple[str, PlacementStatus]]:
    """Return a network's placements whose removal is not confirmed, each with the ID of the placement's cluster.

    Consider the network's own cluster and all members if the network's claims are in quarantine, otherwise only the
    members in quarantine.
    """
    ids = [one.id for one in (row, *find_members(unit, row.id)) if row.quarantined or one.quarantined]
    return [
        (cluster_id, placement)
        for cluster_id, placements in read_placements(unit, ids).items()
        for placement in placements
        if placement.progress is not PlacementProgress.REMOVED
    ]


def _delete_placement(unit: Unit, cluster_id: str, placement: PlacementStatus, why: str) -> None:
    """Delete a placement, so that the cluster no longer waits for the element. Change no revision."""
    unit.session.execute(
        delete(PlacementRow).where(PlacementRow.cluster_id == cluster_id, PlacementRow.element == placement.element)
    )
    record_audit(unit, "number_said_clean", why=why, element=placement.element, cluster_id=cluster_id)


def _make_quarantine(
    claim: ClaimRow, row: ClusterRow, unconfirmed: Iterable[tuple[str, PlacementStatus]]
) -> QuarantinedVlan:
    return QuarantinedVlan(
        vlan=VlanId(claim.vlan),
        cluster=ClusterKey(row.key),
        cluster_id=row.id,
        since=row.leaving_since or row.created_at,
        elements={placement.element: placement.site for _, placement in unconfirmed},
    )
