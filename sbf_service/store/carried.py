"""What a switch was last seen to carry, as the database keeps it."""

from pydantic import TypeAdapter

from sbf_service.store.tables import ElementRow
from virtcloud.model.wanted import PortVlans

_CARRIED = TypeAdapter(PortVlans)


def carried_of(row: ElementRow) -> PortVlans | None:
    """Read it; nothing when the element was never read."""
    return None if row.carried is None else _CARRIED.validate_json(row.carried)


def keep_carried(row: ElementRow, carried: PortVlans) -> None:
    """Keep it."""
    row.carried = _CARRIED.dump_json(carried).decode()
