"""The wanted power states of guests. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from virtcloud.model.errors import Conflict
from virtcloud.model.guests import GuestPower, GuestPowerRequest
from virtcloud.model.wanted import GUEST_POWER, GuestWanted, HostWanted, Segment

STARTS_PER_RESTORE: Final = 10_000_000
"""The number that each restore adds to ``WantedPower.starts``, larger than any number of resets."""


@dataclass(frozen=True, slots=True)
class WantedPower:
    """The wanted power state of a guest.

    By the number ``starts``, the guest's host recognizes a reset. It is the number of requested resets, plus
    `STARTS_PER_RESTORE` for each restore of the database between the cluster's creation and the last reset. Therefore,
    the first reset after a restore gets a higher number than each reset after the backup. Exception: two restores of
    the same backup count once, so a reset after the second restore can get a number that the host already knows.
    """

    stopped: bool = False
    starts: int = 0

    @property
    def resets(self) -> int:
        """The number of requested resets."""
        return self.starts % STARTS_PER_RESTORE


GuestPowers = Mapping[tuple[str, str], WantedPower]
"""The wanted power states of guests that were stopped or reset, by cluster ID and guest."""
ALWAYS_ON = WantedPower()


def decide_power(guest: str, former: WantedPower, request: GuestPowerRequest, restores: int = 0) -> WantedPower:
    """Return the new power state of a guest.

    ``restores`` is the number of restores of the database since the cluster's creation. A request with the former
    number of resets does not reset the guest. A lower number shows that other callers have reset the guest. Raise
    Conflict if the request resets a guest that is stopped or that the request stops, or if the number of resets is
    neither the former number nor the next.
    """
    stopped = request.power is GuestPower.OFF
    if request.resets in {None, former.resets}:
        return WantedPower(stopped, former.starts)
    if former.stopped or stopped:
        raise Conflict(f"guest {guest} is stopped and cannot be reset: start it (virtcloud guest start)")
    if request.resets != former.resets + 1:
        raise Conflict(
            f"guest {guest}: expected reset number {former.resets + 1}, got {request.resets}: another caller reset the "
            "guest in between; show the guest (virtcloud guest list), and reset it again if needed"
        )
    return WantedPower(stopped, restores * STARTS_PER_RESTORE + request.resets)


def apply_guest_powers(wanted: HostWanted, powers: GuestPowers) -> HostWanted:
    """Return a host's wanted state with the power states of its guests.

    A segment with a stopped or reset guest requires an agent that knows power states.
    """
    return wanted.model_copy(update={"segments": tuple(_apply(segment, powers) for segment in wanted.segments)})


def list_cluster_ids(wanted: HostWanted) -> Iterable[str]:
    """Return the IDs of the clusters that have guests on a host."""
    return {guest.cluster or segment.id for segment in wanted.segments for guest in segment.guests}


def _apply(segment: Segment, powers: GuestPowers) -> Segment:
    changed = {
        guest.name: power
        for guest in segment.guests
        if (power := powers.get((guest.cluster or segment.id, guest.name), ALWAYS_ON)) != ALWAYS_ON
    }
    if not changed:
        return segment
    guests = tuple(_with_power(guest, changed.get(guest.name, ALWAYS_ON)) for guest in segment.guests)
    return segment.model_copy(update={"guests": guests, "requires": (*segment.requires, GUEST_POWER)})


def _with_power(guest: GuestWanted, power: WantedPower) -> GuestWanted:
    return guest.model_copy(update={"power": "off" if power.stopped else None, "starts": power.starts or None})
