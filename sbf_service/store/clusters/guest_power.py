"""The wanted power states of guests, and the views of guests."""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import select, true

from sbf_service.domain.error_report import find_cluster_error
from sbf_service.domain.guest_power import ALWAYS_ON, GuestPowers, WantedPower, decide_power
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.maintenance.restored_state import REVISION_STEP
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.guest_tables import GuestPowerRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.guest_spec import Guest
from virtcloud.model.guests import GuestPower, GuestPowerRequest, GuestView
from virtcloud.model.values import ClusterKey


def read_guest_powers(unit: Unit, cluster_ids: Iterable[str]) -> GuestPowers:
    """Return the wanted power states of these clusters' guests, except guests that were never stopped or reset."""
    found: dict[tuple[str, str], WantedPower] = {}
    for group in split_ids(sorted(cluster_ids)):
        for row in unit.session.scalars(select(GuestPowerRow).where(GuestPowerRow.cluster_id.in_(group))):
            found[row.cluster_id, row.guest] = WantedPower(row.stopped, row.resets)
    return found


def list_guests(unit: Unit, key: str, cluster_id: str | None = None) -> list[GuestView]:
    """Return the guests of a cluster.

    Raise NotFound for an unknown cluster. Raise Conflict if the cluster is ending or has ended.
    """
    row = _require_live(unit, key, cluster_id)
    return [_format_guest(unit, row, guest) for guest in parse_current_spec(row).guests]


def get_guest(unit: Unit, key: str, name: str, cluster_id: str | None = None) -> GuestView:
    """Return a guest.

    Raise NotFound for an unknown cluster or guest. Raise Conflict if the cluster is ending or has ended.
    """
    row = _require_live(unit, key, cluster_id)
    return _format_guest(unit, row, _find_guest(row, name))


def set_guest_power(
    unit: Unit, key: str, name: str, request: GuestPowerRequest, cluster_id: str | None = None
) -> GuestView:
    """Stop, start or reset a guest. Idempotent.

    A change increments the revision of the guest's host. Raise NotFound for an unknown cluster or guest. Raise Conflict
    if the cluster is ending or has ended, or if the request contradicts the guest's state.
    """
    row = _require_live(unit, key, cluster_id)
    guest = _find_guest(row, name)
    stored = unit.session.get(GuestPowerRow, (row.id, guest.name))
    former = WantedPower(stored.stopped, stored.resets) if stored else ALWAYS_ON
    power = decide_power(guest.name, former, request, restores=row.version // REVISION_STEP)
    if power != former:
        revision = increment_revisions(unit, [guest.host])[guest.host].revision
        unit.session.merge(
            GuestPowerRow(
                cluster_id=row.id,
                guest=guest.name,
                element=guest.host,
                stopped=power.stopped,
                resets=power.starts,
                revision=revision,
                unstopped=None,
            )
        )
        record_audit(unit, _name_change(former, power), why=f"guest {name}", element=guest.host, cluster_id=row.id)
        unit.session.flush()
    return _format_guest(unit, row, guest)


def mark_unstopped_guests(unit: Unit, element: str, unstopped: Mapping[str, Collection[str]]) -> None:
    """Set the column ``unstopped`` of the guests on an element: of no guest except those in ``unstopped``.

    ``unstopped`` has the names of guests by cluster ID.
    """
    on_element = GuestPowerRow.element == element
    for row in unit.session.scalars(select(GuestPowerRow).where(on_element, GuestPowerRow.stopped == true())):
        row.unstopped = row.guest in unstopped.get(row.cluster_id, ()) or None


def _name_change(former: WantedPower, power: WantedPower) -> str:
    if power.resets != former.resets:
        return "guest_reset"
    return "guest_stopped" if power.stopped else "guest_started"


def _require_live(unit: Unit, key: str, cluster_id: str | None) -> ClusterRow:
    row = require_cluster(unit, key, cluster_id)
    if ClusterState(row.state) not in WANTED_STATES:
        raise Conflict(f"cluster {key} is {row.state}, and its guests are removed: create a new cluster")
    return row


def _find_guest(row: ClusterRow, name: str) -> Guest:
    guests = {str(guest.name): guest for guest in parse_current_spec(row).guests}
    if name not in guests:
        raise NotFound(f"cluster {row.key} has no guest {name}; its guests: {', '.join(guests) or 'none'}")
    return guests[name]


def _format_guest(unit: Unit, row: ClusterRow, guest: Guest) -> GuestView:
    """Return the view of a guest.

    If the host's confirmation excludes the cluster, the guest is shown as unconfirmed, except a guest with the power
    "off" that the host has stopped.
    """
    host = unit.session.get_one(ElementRow, guest.host)
    stored = unit.session.get(GuestPowerRow, (row.id, guest.name))
    placement = unit.session.get_one(PlacementRow, (row.id, guest.host))
    power = WantedPower(stored.stopped, stored.resets) if stored else ALWAYS_ON
    wanted = max(placement.added_revision, stored.revision) if stored else placement.added_revision
    excluded = placement.blocked and (stored is None or not stored.stopped or bool(stored.unstopped))
    confirmed = min(host.confirmed_revision, wanted - 1) if excluded else host.confirmed_revision
    return GuestView(
        name=guest.name,
        cluster=ClusterKey(row.key),
        host=guest.host,
        image=guest.image,
        addresses=guest.addresses,
        power=GuestPower.OFF if power.stopped else GuestPower.ON,
        resets=power.resets,
        wanted_revision=wanted,
        confirmed_revision=confirmed,
        reachable=host.reachable,
        trouble=None if confirmed >= wanted else find_cluster_error(host.trouble, host.troubles, row.id, row.network),
    )
