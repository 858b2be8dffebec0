"""What a host or gateway did when it confirmed a revision, told by what that revision brought (DESIGN.md §7.8).

An agent says how far it is, not what it did: it may die between the two. What it must have done follows from the
revisions, and is written in the transaction that confirms them.
"""

from sqlalchemy import and_, select

from sbf_service.preview import plans
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from sbf_service.store.standing import clusters_where, live
from sbf_service.store.tables import ClusterRow, PlacementRow
from virtcloud.model.preview import HostDifference
from virtcloud.model.values import ClusterKey, Name


def confirmed_change(unit: Unit, host: str, before: int, highest: int, revision: int) -> HostDifference | None:
    """Return the clusters that a host set up and removed when it confirmed ``revision``; None when there are none.

    ``before`` is the revision that it had confirmed until now, 0 after a reset: then it set up again whatever stays.
    ``highest`` is the newest revision that it ever confirmed: removals up to that one were recorded then.
    """
    new, gone = PlacementRow.added_revision, PlacementRow.removed_revision
    came = and_(new > before, new <= revision, gone.is_(None))
    went = and_(gone > highest, gone <= revision)
    here = select(PlacementRow.cluster_id).where(PlacementRow.element == host)
    added = live(unit, clusters_where(unit, ClusterRow.id.in_(here.where(came))))
    removed = clusters_where(unit, ClusterRow.id.in_(here.where(went)))
    found = HostDifference(
        add=plans(Name(host), read_topology(unit), added),
        remove=tuple(sorted({ClusterKey(row.key) for row in removed})),
    )
    return found or None
