"""Ownership: the rules that distinguish SBF's VLANs on a device from VLANs in other use. Pure.

SBF owns a VLAN with SBF's name if the VLAN ID is *known* on the device: SBF has managed the VLAN ID on this device
before, and found no other use. Otherwise, the VLAN can belong to another SBF, or to a cluster of a lost database
(docs/decisions/0097). SBF also owns a VLAN with SBF's name, without a name, or with the platform's default name, if the
database records that SBF created the VLAN. SBF owns no other VLAN, even if the pool contains the VLAN ID.

A VLAN is in other use (foreign) if it exists in the device's VLAN table without belonging to SBF, or if an unmanaged
port carries the VLAN, even a VLAN that SBF owns.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from types import MappingProxyType
from typing import Final

from virtcloud.model.switch_state import ForeignVlan, SwitchObserved
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

ALL_VLAN_IDS: Final = VlanSet(range(1, 4095))
_DEFAULT_NAME = re.compile(r"vlan[ _-]?0*(\d+)", re.IGNORECASE)
"""The names that platforms give to unnamed VLANs: ``VLAN0150``, ``VLAN 0150``, ``VLAN150``."""

_SBF_NAME = re.compile(r"vc-([1-9]\d{0,3})(?:-\d+)?")
_ALL_BUT_DEFAULT = frozenset(range(2, 4095))


def make_vlan_name(vlan: VlanId, names: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return SBF's name for a VLAN, different from the ``names`` of the device's other VLANs.

    Some platforms refuse a name that another VLAN already has.
    """
    taken = {name for other, name in names.items() if other != vlan}
    first = f"vc-{vlan}"
    return next(name for name in chain((first,), (f"{first}-{suffix}" for suffix in count(2))) if name not in taken)


def is_vlan_name(vlan: int, name: str | None) -> bool:
    """Return whether ``name`` is a name that :func:`make_vlan_name` can return for a VLAN."""
    match = _SBF_NAME.fullmatch(name or "")
    return match is not None and int(match[1]) == vlan


def find_owned_vlans(observed: SwitchObserved, created: VlanSet, known: VlanSet = ALL_VLAN_IDS) -> VlanSet:
    """Return the IDs of existing VLANs that SBF owns: by the record ``created``, or by name if the ID is ``known``."""
    if observed.names is None:
        return observed.vlans & created
    return VlanSet(vlan for vlan, name in observed.names.items() if _is_owned(vlan, name, created, known))


def mark_foreign_vlans(observed: SwitchObserved, created: VlanSet, known: VlanSet = ALL_VLAN_IDS) -> SwitchObserved:
    """Return a copy of ``observed`` in which ``foreign`` lists the VLANs in other use on the device. Idempotent.

    The copy's ``vlans`` and ``ports`` contain no VLAN that SBF does not own, so SBF's changes of the device contain no
    such VLAN. Exception: a renamed VLAN that SBF created stays in ``ports``, so that SBF can remove the VLAN from the
    managed ports.
    """
    owned = find_owned_vlans(observed, created, known)
    foreign = tuple(_find_foreign_vlans(observed, owned))
    others = VlanSet(other.vlan for other in foreign) - owned
    return observed.model_copy(
        update={
            "vlans": observed.vlans - others,
            "ports": {port: vlans - (others - created) for port, vlans in observed.ports.items()},
            "foreign": foreign,
        }
    )


def find_stated_vlans(listed: Iterable[int], managed: VlanSet) -> VlanSet:
    """Return the managed VLAN IDs that an unmanaged port lists.

    Return no VLAN ID for a port that lists every VLAN: such a list does not show the VLANs in use.
    """
    vlans = frozenset(listed)
    return VlanSet() if vlans >= _ALL_BUT_DEFAULT else managed & vlans


def _find_foreign_vlans(observed: SwitchObserved, owned: VlanSet) -> Iterator[ForeignVlan]:
    ports = _group_unmanaged_ports(observed)
    unowned = VlanSet() if observed.names is None else VlanSet(observed.names) - owned
    for vlan in VlanSet(ports) | unowned:
        name = (observed.names or {}).get(vlan) if vlan in unowned else None
        yield ForeignVlan(vlan=vlan, name=name, ports=tuple(sorted(ports.get(vlan, ()))))


def _group_unmanaged_ports(observed: SwitchObserved) -> dict[VlanId, list[PortName]]:
    ports: dict[VlanId, list[PortName]] = {}
    for port, vlans in observed.elsewhere.items():
        for vlan in vlans:
            ports.setdefault(vlan, []).append(port)
    return ports


def _is_owned(vlan: VlanId, name: str | None, created: VlanSet, known: VlanSet) -> bool:
    if is_vlan_name(vlan, name):
        return vlan in known or vlan in created
    return vlan in created and (not name or is_default_name(vlan, name))


def is_default_name(vlan: int, name: str) -> bool:
    """Return whether ``name`` is a name that platforms give to an unnamed VLAN."""
    match = _DEFAULT_NAME.fullmatch(name)
    return match is not None and int(match[1]) == vlan


def describe_foreign_vlans(foreign: Iterable[ForeignVlan]) -> str:
    """Describe VLANs in other use, for messages."""
    return "; ".join(f"VLAN {other.vlan} is in other use: {other.use}" for other in foreign)
