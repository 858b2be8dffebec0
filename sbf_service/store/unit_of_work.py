"""A unit of work: the work of one caller in a database transaction, with its audit rows and change topics.

:mod:`.store` opens and commits units, and publishes their changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert
from sqlalchemy.orm import Session

from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import Base, ElementRow
from sbf_service.store.topology.topology_cache import TopologyCache
from sbf_service.store.transactions.lock_scopes import LockScope, OutsideScopeError
from virtcloud.current_call import current_request_id
from virtcloud.model.access import QuotaLimits
from virtcloud.model.document import Document
from virtcloud.model.topology import Topology

Clock = Callable[[Session], datetime]

TOPOLOGY_TOPIC = "topology"
AUDIT_TOPIC = "audit"
TRAFFIC_TOPIC = "traffic"
"""The change topic of gateways' reports: VPN connections, and uses of destinations."""

_INSERT_AUDIT = insert(Base.metadata.tables[AuditRow.__tablename__]).inline()


@dataclass(slots=True)
class UnitValues:
    """Values that a transaction reads only once, for all its units."""

    now: datetime | None = None
    topology_version: int | None = None
    checked_version: int | None = None
    """The version of the topology for which the transaction found no unchecked elements.

    The store adds this version to its cache after the commit.
    """
    limits: dict[str, QuotaLimits | None] = field(default_factory=dict)
    quota_rows: dict[str, Sequence[Any]] | None = None
    """Rows of users with individual limits, by user (see :mod:`.users.quotas`); None before the first query."""
    elements: dict[str, ElementRow] = field(default_factory=dict)
    """The loaded rows of elements, to which the session has only weak references."""


@dataclass(slots=True)
class Unit:
    """One unit of work. The units of a group commit share one transaction (:mod:`.transactions.group_commit`).

    After the commit, the store publishes the topics in ``changed``. All units of a store share the ``cache``, but a
    dry run has its own copy. ``scope`` is the locked scope, or None if the unit locks everything or a single row, or
    only reads.
    """

    session: Session
    clock: Clock
    cache: TopologyCache
    who: str = "sbf"
    changed: set[str] = field(default_factory=set)
    topology_version: int | None = None
    new_topology: Topology | None = None
    """The topology that this unit stored as ``topology_version``, for the store's cache after the commit."""
    scope: LockScope | None = None
    values: UnitValues = field(default_factory=UnitValues)

    @property
    def now(self) -> datetime:
        """The database's time at the first use of this property, after all locks were acquired."""
        if self.values.now is None:
            self.values.now = self.clock(self.session)
        return self.values.now

    @property
    def connection(self) -> Connection:
        """The connection, for statements that bypass the session's objects."""
        return self.session.connection()

    def require_sites(self, sites: Iterable[str]) -> None:
        """Raise OutsideScopeError if this unit has not locked all ``sites``."""
        if self.scope is not None and not self.scope.sites.issuperset(sites):
            raise OutsideScopeError(f"sites {', '.join(sorted(set(sites) - self.scope.sites))}")

    def require_names(self, names: Iterable[str]) -> None:
        """Raise OutsideScopeError if this unit has not locked all ``names``."""
        if self.scope is not None and not self.scope.names.issuperset(names):
            raise OutsideScopeError(f"names {', '.join(sorted(set(names) - self.scope.names))}")

    def require_everything(self) -> None:
        """Raise OutsideScopeError if this unit has locked only a scope.

        The store then runs the change again in a unit that locks everything.
        """
        if self.scope is not None:
            raise OutsideScopeError


def record_audit(  # noqa: PLR0913 - the columns of an audit row
    unit: Unit,
    what: str,
    *,
    why: str | None = None,
    element: str | None = None,
    cluster_id: str | None = None,
    difference: Document | None = None,
    request_id: str | None = None,
) -> None:
    """Insert an audit row in the transaction of the change (docs/explanation/invariants.md, 8).

    A current call's request ID takes precedence over ``request_id``.
    """
    text = None if difference is None else difference.model_dump_json(exclude_defaults=True)
    values = {"who": unit.who, "what": what, "why": why, "element": element, "cluster_id": cluster_id}
    values["request_id"] = current_request_id() or request_id
    unit.connection.execute(_INSERT_AUDIT, {"at": unit.now, "difference": text, **values})
    unit.changed.add(AUDIT_TOPIC)
