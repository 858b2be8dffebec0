"""The versions of change topics in the database.

A replica may miss another replica's notice of a change (``change_notices.py``), and therefore polls these versions with
one query for all waiting calls.
"""

import json
from collections.abc import Callable, Mapping

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Select,
    Text,
    bindparam,
    cast,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.sql.selectable import ScalarSelect, TableValuedAlias

from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.guest_tables import GuestSessionRow
from sbf_service.store.tables.service_tables import AuditRow, JobQuestionRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.user_tables import TokenRow
from sbf_service.store.unit_of_work import Unit

Versions = Mapping[str, int | None]
Version = ScalarSelect[int]

_NEWEST_FIRST = ClusterRow.turn.desc(), ClusterRow.attempt.desc()


def _wanted_revision(name: ColumnElement[str]) -> Version:
    return select(ElementRow.wanted_revision).where(ElementRow.name == name).scalar_subquery()


def _confirmed_revision(name: ColumnElement[str]) -> Version:
    return select(ElementRow.confirmed_revision).where(ElementRow.name == name).scalar_subquery()


def _cluster_version(key: ColumnElement[str]) -> Version:
    newest = select(ClusterRow.version).where(ClusterRow.key == key).order_by(*_NEWEST_FIRST).limit(1)
    return newest.scalar_subquery()


def _newest_session(name: ColumnElement[str]) -> Version:
    newest = select(func.max(GuestSessionRow.number)).where(GuestSessionRow.element == name)
    return newest.scalar_subquery()


def _newest_audit_row(_name: ColumnElement[str]) -> Version:
    return select(func.max(AuditRow.id)).scalar_subquery()


def _open_questions(_name: ColumnElement[str]) -> Version:
    return select(func.count()).select_from(JobQuestionRow).where(JobQuestionRow.answer.is_(None)).scalar_subquery()


def _revoked_tokens(_name: ColumnElement[str]) -> Version:
    return select(func.count()).select_from(TokenRow).where(TokenRow.revoked_at.is_not(None)).scalar_subquery()


_VERSION_OF: Mapping[str, Callable[[ColumnElement[str]], Version]] = {
    "element": _wanted_revision,
    "confirmed": _confirmed_revision,
    "cluster": _cluster_version,
    "state": _cluster_version,
    "sessions": _newest_session,
    "audit": _newest_audit_row,
    "jobs": _open_questions,
    "tokens": _revoked_tokens,
}
"""Functions that return the SQL expression of a topic's version, by the topic's kind.

The kind is the part before the first colon, such as ``element``. The function's argument is the part after the colon.
"""


def find_outdated_topics(unit: Unit, known: Versions) -> dict[str, int | None]:
    """Return the current version of each topic whose version differs from the known version, in one query.

    ``known`` maps topics to known versions. A known version of None differs from every version. Omit topics of kinds
    that are not in ``_VERSION_OF``.
    """
    by_kind: dict[str, dict[str, int | None]] = {}
    for topic, version in known.items():
        kind, _, name = topic.partition(":")
        if kind in _VERSION_OF:
            by_kind.setdefault(kind, {})[name] = version
    if not by_kind:
        return {}
    parts = [_select_outdated(unit, kind) for kind in sorted(by_kind)]
    rows = unit.connection.execute(
        parts[0] if len(parts) == 1 else union_all(*parts),
        {f"known_{kind}": json.dumps(names) for kind, names in by_kind.items()},
    )
    return {f"{row.kind}:{row.name}" if row.name else row.kind: row.version for row in rows}


def _select_outdated(unit: Unit, kind: str) -> Select[str, str, int]:
    given, name, known = _expand(unit, kind)
    version = _VERSION_OF[kind](name)
    return (
        select(literal(kind).label("kind"), name.label("name"), version.label("version"))
        .select_from(given)
        .where(version.is_distinct_from(known))
    )


def _expand(unit: Unit, kind: str) -> tuple[TableValuedAlias, ColumnElement[str], ColumnElement[int]]:
    parameter = bindparam(f"known_{kind}", type_=Text())
    if unit.connection.dialect.name == "postgresql":
        given = func.json_each_text(cast(parameter, JSON)).table_valued("key", "value", name=f"given_{kind}")
    else:
        given = func.json_each(parameter).table_valued("key", "value", name=f"given_{kind}")
    return given, given.c.key, cast(given.c.value, BigInteger)
