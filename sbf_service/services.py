"""Which service number of a transport a new cluster gets: one of its own, wherever each cluster has one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class ServicePool:
    """The service numbers of one transport: all that clusters may have, those held, and when others were given back.

    ``quarantined`` are those of the held ones that ended clusters keep back.
    """

    transport: Name
    given: range
    held: frozenset[int] = frozenset()
    quarantined: int = 0
    freed: Mapping[int, datetime] | None = None


def take_service(pool: ServicePool) -> int:
    """Choose the number unused for longest: the lowest never used, if there is one. Raises :class:`NoVlanFree`.

    Ranges may be millions long, so that never all of one is made.
    """
    freed = {number: at for number, at in (pool.freed or {}).items() if number in pool.given}
    unused = next((number for number in pool.given if number not in pool.held and number not in freed), None)
    if unused is not None:
        return unused
    free = freed.keys() - pool.held
    if not free:
        raise NoVlanFree(_nothing_free(pool))
    return min(free, key=lambda number: (freed[number], number))


def _nothing_free(pool: ServicePool) -> str:
    first, last = pool.given[0], pool.given[-1]
    kept = f", {pool.quarantined} of them in quarantine" if pool.quarantined else ""
    return (
        f"no service number is free on transport {pool.transport}: it gives {first}-{last}, all {len(pool.given)} in "
        f"use{kept}; end a cluster, or give the transport more numbers"
    )
