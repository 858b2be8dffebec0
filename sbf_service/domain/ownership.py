"""Ownership: the distinction between SBF's VLANs on a device and VLANs in other use (DESIGN.md §3, Ownership). Pure.

SBF owns a VLAN that has SBF's name. SBF also owns a VLAN without a name, or with a default name of the platform, if the
database records that SBF created it. SBF does not own any other VLAN, even if the pool contains its ID. A VLAN that an
unmanaged port carries is in other use as long as the port carries it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from types import MappingProxyType

from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan, SwitchObserved

_DEFAULT_NAME = re.compile(r"vlan[ _-]?0*(\d+)", re.IGNORECASE)
"""The names that platforms give to unnamed VLANs: ``VLAN0150``, ``VLAN 0150``, ``VLAN150``."""

_OWN_NAME = re.compile(r"vc-([1-9]\d{0,3})(?:-\d+)?")
_ALL = frozenset(range(2, 4095))


def make_vlan_name(vlan: VlanId, names: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return SBF's name for a VLAN on a device. The name differs from the names of the device's other VLANs.

    Some platforms refuse a name that another VLAN has. The VLAN would then not get SBF's name.
    """
    taken = {name for other, name in names.items() if other != vlan}
    own = f"vc-{vlan}"
    return next(name for name in chain((own,), (f"{own}-{suffix}" for suffix in count(2))) if name not in taken)


def is_vlan_name(vlan: int, name: str | None) -> bool:
    """Return whether :func:`make_vlan_name` may have given this name to a VLAN."""
    found = _OWN_NAME.fullmatch(name or "")
    return found is not None and int(found[1]) == vlan


def find_owned_vlans(carried: SwitchObserved, created: VlanSet) -> VlanSet:
    """Return the IDs of existing VLANs that SBF owns by their name or by the record ``created``."""
    if carried.names is None:
        return carried.vlans & created
    return VlanSet(vlan for vlan, name in carried.names.items() if _is_owned(vlan, name, created))


def mark_foreign_vlans(carried: SwitchObserved, created: VlanSet) -> SwitchObserved:
    """Return a reading in which the VLANs in other use on the device are marked as foreign. Idempotent.

    A VLAN that SBF created stays on managed ports in the reading, even if somebody has renamed it: SBF configured the
    VLAN on these ports and must be able to remove it. Other foreign VLANs are removed from the reading, so that no
    difference contains them.
    """
    foreign = tuple(_find_foreign_vlans(carried, created))
    others = VlanSet(one.vlan for one in foreign) - find_owned_vlans(carried, created)
    return carried.model_copy(
        update={
            "vlans": carried.vlans - others,
            "ports": {port: vlans - (others - created) for port, vlans in carried.ports.items()},
            "foreign": foreign,
        }
    )


def find_stated_vlans(listed: Iterable[int], managed: VlanSet) -> VlanSet:
    """Return the managed VLAN IDs that an unmanaged port uses, according to its list of VLANs.

    The list of a port that carries every VLAN does not show that any single VLAN is in use.
    """
    found = frozenset(listed)
    return VlanSet() if found >= _ALL else managed & found


def find_existing_vlans(carried: SwitchObserved) -> VlanSet:
    """Return every managed VLAN ID that exists on the device, regardless of who created the VLAN."""
    return carried.vlans if carried.names is None else VlanSet(carried.names)


def _find_foreign_vlans(carried: SwitchObserved, created: VlanSet) -> Iterator[ForeignVlan]:
    ports = _ports_by_vlan(carried)
    owned = find_owned_vlans(carried, created)
    unowned = VlanSet() if carried.names is None else VlanSet(carried.names) - owned
    for vlan in VlanSet(ports) | unowned:
        name = (carried.names or {}).get(vlan) if vlan in unowned else None
        yield ForeignVlan(vlan=vlan, name=name, ports=tuple(sorted(ports.get(vlan, ()))))


def _ports_by_vlan(carried: SwitchObserved) -> dict[VlanId, list[PortName]]:
    found: dict[VlanId, list[PortName]] = {}
    for port, vlans in carried.elsewhere.items():
        for vlan in vlans:
            found.setdefault(vlan, []).append(port)
    return found


def _is_owned(vlan: VlanId, name: str | None, created: VlanSet) -> bool:
    if is_vlan_name(vlan, name):
        return True
    return vlan in created and (not name or is_default_name(vlan, name))


def is_default_name(vlan: int, name: str) -> bool:
    """Return whether ``name`` is a name that platforms give to an unnamed VLAN."""
    found = _DEFAULT_NAME.fullmatch(name)
    return found is not None and int(found[1]) == vlan


def describe_foreign_vlans(foreign: Iterable[ForeignVlan]) -> str:
    """Describe VLANs in other use, for messages."""
    return "; ".join(f"VLAN {one.vlan} is in other use: {one.use}" for one in foreign)
