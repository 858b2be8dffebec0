"""What a machine was seen to carry, within what is ours."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CarriedSegment:
    """A cluster's part of the network: what bears its mark.

    ``port`` is None when the tagged interface is gone and only the bridge is left. ``faults`` are what keeps it from
    being as we make it, in words; a segment without faults is left alone.
    """

    cluster: str
    vlan: int
    port: str | None
    faults: tuple[str, ...] = ()
    untagged: bool = False


@dataclass(frozen=True, slots=True)
class CarriedGuest:
    """A domain that bears our mark. ``digest`` tells which wanted document it was made from."""

    cluster: str
    guest: str
    digest: str
    running: bool = True


@dataclass(frozen=True, slots=True)
class Carried:
    """All of it.

    ``silent`` has an error for each hypervisor that did not answer; its guests are not among ``guests``.
    """

    segments: tuple[CarriedSegment, ...] = ()
    guests: tuple[CarriedGuest, ...] = ()
    silent: tuple[str, ...] = ()
