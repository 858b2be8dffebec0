"""The placements of clusters after a new topology or a change of gateways."""

import json
from collections.abc import Iterable, Sequence

from sqlalchemy import Text, bindparam, exists, false, insert, select, tuple_, update

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.store.elements.revisions import increment_all
from sbf_service.store.networks.service_nodes import move_services
from sbf_service.store.tables.cluster_tables import PlacementRow
from sbf_service.store.tables.columns import select_pairs
from sbf_service.store.tables.tables import Base, ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.values import Name

Placement = tuple[str, Name]
"""A cluster's ID, and the name of an element."""
_PLACEMENTS = Base.metadata.tables[PlacementRow.__tablename__]
_KEY = tuple_(_PLACEMENTS.c.cluster_id, _PLACEMENTS.c.element)
_REVISION = select(ElementRow.wanted_revision).where(ElementRow.name == _PLACEMENTS.c.element).scalar_subquery()
_ADDED = select_pairs(bindparam("added", type_=Text))
_ADD_AGAIN = update(_PLACEMENTS).where(_KEY.in_(_ADDED)).values(added_revision=_REVISION, removed_revision=None)
_PAIR = _ADDED.subquery("pair")
_INSERT = insert(_PLACEMENTS).from_select(
    ["cluster_id", "element", "added_revision", "blocked", "settled"],
    select(_PAIR.c.left_text, _PAIR.c.right_text, ElementRow.wanted_revision, false(), false())
    .join(ElementRow, ElementRow.name == _PAIR.c.right_text)
    .where(
        ~exists()
        .where(_PLACEMENTS.c.cluster_id == _PAIR.c.left_text, _PLACEMENTS.c.element == _PAIR.c.right_text)
        .correlate(_PAIR)
    ),
)
_END = (
    update(_PLACEMENTS)
    .where(_KEY.in_(select_pairs(bindparam("left", type_=Text))), _PLACEMENTS.c.removed_revision.is_(None))
    .values(removed_revision=_REVISION)
)


def update_placements(unit: Unit, effects: TopologyEffects, live: Sequence[LiveCluster]) -> None:
    """Change the placements of clusters.

    Also increment the revisions of elements that a cluster leaves: a placement must end with a later revision than it
    began.
    """
    effects.update(live)
    moved = move_services(unit, effects.change, live)
    moves = effects.list_moves()
    left = {name for move in moves for name in move.left}
    increment_all(unit, {*(effects.changed or ()), *left, *find_other_destinations(effects.change), *moved})
    change_placements(
        unit,
        added=[(move.cluster.id, name) for move in moves for name in move.added],
        left=[(move.cluster.id, name) for move in moves for name in move.left],
    )
    unit.changed.update(f"cluster:{move.cluster.key}" for move in moves)


def find_other_destinations(change: TopologyChange) -> set[Name]:
    """Return the gateways of both topologies whose site changes its destinations."""
    before, after = change.former, change.topology
    both = before.gateways.keys() & after.gateways.keys()
    return {name for name in both if before.site_of[name].destinations != after.site_of[name].destinations}


def change_placements(unit: Unit, *, added: Iterable[Placement], left: Iterable[Placement]) -> None:
    """Add placements, and end other placements. Increment the revisions of their elements first.

    If a placement in ``added`` exists, its element must confirm the cluster again. The statements contain all
    placements in one parameter: a new topology can change the placements of thousands of clusters, and other calls wait
    for its transaction.
    """
    unit.session.flush()
    texts = {"added": _format(added), "left": _format(left)}
    for name, statement in (("added", _ADD_AGAIN), ("added", _INSERT), ("left", _END)):
        if texts[name] is not None:
            unit.connection.execute(statement, {name: texts[name]})
    for loaded in [row for row in unit.session.identity_map.values() if isinstance(row, PlacementRow)]:
        unit.session.expire(loaded)


def _format(placements: Iterable[Placement]) -> str | None:
    """Return the placements as a JSON list in the order of the primary key, or None if there are none."""
    pairs = sorted(set(placements))
    return json.dumps(pairs) if pairs else None
