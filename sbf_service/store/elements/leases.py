"""Leases on elements, the fencing tokens of leases, and the heartbeats of agents.

Every new lease increments the element's fencing token, and SBF then refuses writes with the old token.
"""

from datetime import timedelta

from sqlalchemy import bindparam, or_, select, union_all, update

from sbf_service.store.elements.revisions import require_element
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.tables import IS_RECONCILED, ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import Name

_LEASE = update(ElementRow).where(ElementRow.name == bindparam("element"))
_IS_AVAILABLE = or_(
    ElementRow.lease_until.is_(None),
    ElementRow.lease_until < bindparam("now"),
    ElementRow.lease_holder == bindparam("holder"),
)
_ACQUIRE = (
    _LEASE.where(IS_RECONCILED, _IS_AVAILABLE)
    .values(lease_holder=bindparam("holder"), lease_until=bindparam("until"), fence=ElementRow.fence + 1)
    .returning(ElementRow.fence)
)
_OF_FENCE = _LEASE.where(ElementRow.fence == bindparam("token"))
_RENEW = (
    _OF_FENCE.where(ElementRow.lease_until.is_not(None))
    .values(lease_until=bindparam("until"))
    .returning(ElementRow.fence)
)
_RELEASE = _OF_FENCE.values(lease_until=None)


def acquire_lease(unit: Unit, element: str, holder: str, length: timedelta) -> int | None:
    """Acquire an element's lease for ``length``.

    Return the new fencing token, even if ``holder`` already has the lease. Return None while another holder has the
    lease, or if SBF reconciles no such element (``IS_RECONCILED``).

    The lease begins at ``unit.now``, before the statement locks the element's row, so that a wait shortens the lease.
    The statement also compares the end of the former lease with ``unit.now``, so two holders never have the lease at
    the same time. A holder computes its deadline from the time before this call
    (:class:`~sbf_service.reconcile.heartbeats.HeldLease`).
    """
    lease = {"element": element, "holder": holder, "now": unit.now, "until": unit.now + length}
    return unit.connection.execute(_ACQUIRE, lease).scalar_one_or_none()


def renew_lease(unit: Unit, element: str, fence: int, length: timedelta) -> bool:
    """Renew a lease for ``length``. Return False after a release, or if a newer lease was acquired."""
    lease = {"element": element, "token": fence, "until": unit.now + length}
    return unit.connection.execute(_RENEW, lease).scalar_one_or_none() is not None


def holds_lease(unit: Unit, element: str, fence: int) -> bool:
    """Return whether ``fence`` is the newest fencing token. Lock the element's row until the unit ends."""
    return unit.session.scalar(select(ElementRow.fence).where(ElementRow.name == element).with_for_update()) == fence


def release_lease(unit: Unit, element: str, fence: int) -> None:
    """Release an element's lease, if ``fence`` is its newest fencing token."""
    unit.connection.execute(_RELEASE, {"element": element, "token": fence})


def release_leases_of(unit: Unit, holder: str) -> None:
    """Release all leases of a restarted replica, and increment the fencing tokens of the leased elements.

    Late writes of the replica's previous process then fail. Call this within :meth:`Store.change`.
    """
    unit.session.execute(
        update(ElementRow).where(ElementRow.lease_holder == holder).values(lease_until=None, fence=ElementRow.fence + 1)
    )


HEARTBEAT_INTERVAL = timedelta(seconds=5)
"""The time after a recorded heartbeat for which further heartbeats of the agent are not recorded."""


_IS_SEEN = (ElementRow.present, ~equals_any(ElementRow.kind, DEVICE_KINDS), ElementRow.reachable)
"""The condition that an element is present, reachable, and has an agent: the condition of the index on ``last_seen``.
"""
_FIND_STALE = union_all(
    select(ElementRow.name).where(*_IS_SEEN, ElementRow.last_seen.is_(None)),
    select(ElementRow.name).where(*_IS_SEEN, ElementRow.last_seen < bindparam("silent_since")),
)


def find_stale_agents(unit: Unit, silence: timedelta) -> list[Name]:
    """Return the reachable hosts and gateways whose agents have sent no heartbeat for ``silence``, sorted by name.

    Agents that have never sent a heartbeat are included.
    """
    names = unit.connection.execute(_FIND_STALE, {"silent_since": unit.now - silence}).scalars()
    return sorted(Name(name) for name in names)


def record_agent_heartbeat(store: Store, name: str) -> None:
    """Record an agent's heartbeat. Raise NotFound for an unknown element. Raise Conflict for a device.

    The heartbeat of a stale agent does not make its element reachable: the host may have restarted. The agent must
    first confirm a revision or report an error.
    """
    with store.read() as unit:
        row = require_agent(unit, name)
        fresh = row.last_seen is not None and unit.now - row.last_seen < HEARTBEAT_INTERVAL
    if not fresh:
        with store.change_row(who=name) as unit:
            require_element(unit, name).last_seen = unit.now


def receive_heartbeat(unit: Unit, name: str) -> None:
    """Record an agent's heartbeat in a transaction that also changes the agent's element.

    Raise the errors of :func:`record_agent_heartbeat`.
    """
    require_agent(unit, name).last_seen = unit.now


def require_agent(unit: Unit, name: str) -> ElementRow:
    """Return the row of an element with an agent. Raise NotFound for an unknown element, and Conflict for a device."""
    row = require_element(unit, name)
    if ElementKind(row.kind) in DEVICE_KINDS:
        raise Conflict(
            f"{row.kind} {name} has no agent, because SBF itself configures the {row.kind}: only agents of hosts "
            "and gateways make this call"
        )
    return row
