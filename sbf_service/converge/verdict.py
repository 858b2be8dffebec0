"""What a read-back means. Pure."""

from collections import defaultdict
from collections.abc import Iterator

from sbf_service.drivers.driver import Managed
from sbf_service.drivers.faults import Fault, refused
from sbf_service.ownership import owned_vlans
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference, SwitchWanted, switch_difference

ADOPT = "'virtcloud element adopt {} {}'"
_SHUT = (
    "expected it enabled, since it must carry a cluster, found it shut down: enable it on the switch; SBF enables only "
    "ports that it shut down itself"
)
_LISTED = "a list of allowed VLANs, found all allowed"
_UNTAGGED = "one VLAN of ours untagged or none at all, found something else"


def refuse_outside(name: Name, managed: Managed, difference: SwitchDifference) -> None:
    """Raise Unsafe for a difference that touches what is not managed: the last guard before a device (DESIGN §7.4)."""
    for port, vlans in (*difference.add.items(), *difference.remove.items()):
        if port not in managed.ports or vlans - managed.vlans:
            raise Unsafe(f"switch {name}, port {port}: VLAN {vlans} is not all ours to change (ours: {managed.vlans})")
    strangers = [port for port in difference.close if port not in managed.ports]
    strangers += [port for port in difference.put_back if port not in managed.returned]
    if strangers:
        raise Unsafe(
            f"switch {name}, port {', '.join(strangers)}: not ours to change (ours: {', '.join(managed.ports)})"
        )
    outside = (difference.create | difference.delete) - managed.vlans
    if outside:
        raise Unsafe(f"switch {name}: VLAN {outside} is not ours to create or delete (ours: {managed.vlans})")


def refuse_in_use(name: Name, managed: Managed, carried: SwitchCarried, difference: SwitchDifference) -> None:
    """Raise Unsafe for a port in other use that the difference changes, unless an administrator adopted that use.

    Raise Unsafe also for an access port that somebody shut down: SBF enables only what it shut down itself.
    """
    for port, use in difference.take.items():
        agreed = managed.adopted.get(port)
        if port in carried.in_use and (agreed is None or not agreed.same_configuration(use)):
            since = "" if agreed is None else f", which is not how it was adopted ({agreed})"
            cure = f"it was left alone; adopt it ({ADOPT.format(name, port)}), or take it out of the topology"
            raise Unsafe(f"switch {name}, port {port}: expected a port without other use, found {use}{since}: {cure}")
    for port in set(difference.access) & difference.add.keys() & set(carried.down):
        raise Unsafe(f"switch {name}, port {port}: {_SHUT}")


def refuse_foreign(name: Name, managed: Managed, carried: SwitchCarried, difference: SwitchDifference) -> None:
    """Raise Unsafe for a difference that touches a VLAN of others: the last guard (DESIGN §3, Ownership).

    It looks at what was read and recorded, not at what the difference was computed from.
    """
    owned = owned_vlans(carried, managed.created)
    used = VlanSet(number for vlans in carried.elsewhere.values() for number in vlans)
    unowned = VlanSet(carried.names or ()) - owned
    removed = VlanSet(number for vlans in difference.remove.values() for number in vlans)
    wrong = ((difference.made | difference.delete) & (used | unowned)) | (
        removed & ((used | unowned) - owned - managed.created)
    )
    if wrong:
        raise Unsafe(f"switch {name}: VLAN {wrong} is in other use and not SBF's to change (SBF's: {owned or 'none'})")


def has_drifted(kept: SwitchWanted, carried: SwitchCarried, *, behind: bool) -> bool:
    """Say whether a switch lost what it was confirmed to carry (``kept``).

    A port that was shut down carries nothing. One that is behind may carry something else beside it; one that is not
    must carry nothing else.
    """
    found = switch_difference(kept, carried)
    return bool(found.add) or any(_shut(kept, carried)) or (bool(found) and not behind)


def refuse_leftover(name: Name, wanted: SwitchWanted, carried: SwitchCarried) -> None:
    """Raise Refused when a switch that said yes does not carry what it was told to."""
    shut = [Fault(f"port {port}: {_SHUT}", wanted.ports[port]) for port in _shut(wanted, carried)]
    if shut:
        raise refused(f"switch {name}, ", shut)
    faults = list(_faults(switch_difference(wanted, carried)))
    if faults:
        raise refused(f"switch {name}, ", faults, ": read back after the change; look at its configuration")


def _shut(wanted: SwitchWanted, carried: SwitchCarried) -> Iterator[PortName]:
    """Yield the ports that must carry a VLAN and were shut down."""
    yield from (port for port in carried.down if wanted.ports.get(port))


def _faults(left: SwitchDifference) -> Iterator[Fault]:
    tagged = defaultdict(lambda: "tagged", dict.fromkeys(left.access, "untagged"))
    for port, vlans in left.add.items():
        yield Fault(f"port {port}: wanted VLAN {vlans} {tagged[port]}, found none", vlans)
    for port, vlans in left.remove.items():
        yield Fault(f"port {port}: wanted no VLAN {vlans}, found it {tagged[port]}", vlans)
    for port in left.close:
        wanted = left.add.get(port, VlanSet())
        yield Fault(f"port {port}: wanted {_UNTAGGED if port in left.access else _LISTED}", wanted)
    for port, use in left.put_back.items():
        yield Fault(f"port {port}: wanted it as before SBF took it ({use}), found another configuration", VlanSet())
    if left.create:
        yield Fault(f"wanted VLAN {left.create} to exist, found none", left.create)
    if left.delete:
        yield Fault(f"wanted no VLAN {left.delete}, found it", left.delete)
