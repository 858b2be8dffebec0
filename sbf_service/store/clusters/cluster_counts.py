"""Counts of the clusters that a caller may read, by state and by site."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import distinct, func, select

from sbf_service.store.clusters.cluster_lists import ClusterFilter
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ClusterState
from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """The number of clusters in each state, and at each site.

    A cluster counts at every site where it has a placement. Ended clusters count only if the filter selects them.
    """

    states: Mapping[ClusterState, int]
    sites: Mapping[Name, int]

    @property
    def total(self) -> int:
        """The number of clusters in all states."""
        return sum(self.states.values())


def count_clusters(unit: Unit, selected: ClusterFilter) -> ClusterCounts:
    """Count the clusters that a filter selects."""
    conditions = selected.conditions(unit)
    states = select(ClusterRow.state, func.count()).where(*conditions).group_by(ClusterRow.state)
    sites = (
        select(ElementRow.site, func.count(distinct(PlacementRow.cluster_id)))
        .join(PlacementRow, PlacementRow.element == ElementRow.name)
        .where(PlacementRow.cluster_id.in_(select(ClusterRow.id).where(*conditions).correlate(None)))
        .group_by(ElementRow.site)
    )
    return ClusterCounts(
        {ClusterState(state): number for state, number in unit.session.execute(states)},
        {Name(site): number for site, number in unit.session.execute(sites)},
    )
