"""What is in other use on a device, as a dry run shows it to an administrator. Pure.

Each kind of finding is a function that yields :class:`OtherUse`; :func:`other_use` lists them all.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from virtcloud.model.device import DeviceCarried, DeviceDifference
from virtcloud.model.preview import OtherUse
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference

EXCLUDED = "left as it is; no cluster of this site gets this VLAN ID"


@dataclass(frozen=True, slots=True)
class Compared:
    """A device as a dry run read it. ``owned`` are the VLANs that are SBF's there, ``adopted`` the adopted ports."""

    element: Name
    site: Name
    carried: DeviceCarried
    difference: DeviceDifference
    owned: VlanSet
    adopted: Collection[PortName] = field(default=())

    @property
    def refused(self) -> list[PortName]:
        """The managed ports in other use that nobody adopted."""
        in_use = self.carried.in_use if isinstance(self.carried, SwitchCarried) else ()
        return [port for port in in_use if port not in self.adopted]


def other_use(found: Compared) -> tuple[OtherUse, ...]:
    """Return every use by others that reading a device showed, in the order in which they are listed."""
    return (*_foreign_vlans(found), *_ports_in_use(found), *_taken_off(found))


def _foreign_vlans(found: Compared) -> Iterator[OtherUse]:
    """Yield the VLANs of the pool that are not SBF's, or that unmanaged ports carry: SBF changes none of them."""
    for one in found.carried.foreign:
        yield OtherUse(
            element=found.element,
            site=found.site,
            vlans=VlanSet([one.vlan]),
            ports=one.ports,
            found=f"VLAN {one.vlan}: {one.use}",
            effect=EXCLUDED,
        )


def _ports_in_use(found: Compared) -> Iterator[OtherUse]:
    """Yield the managed ports in other use that nobody adopted: SBF changes none of them."""
    untaken = found.carried.untaken if isinstance(found.carried, SwitchCarried) else {}
    for port in found.refused:
        adopt = f"virtcloud element adopt {found.element} {port}"
        yield OtherUse(
            element=found.element,
            site=found.site,
            ports=(port,),
            found=f"managed port {port} is {untaken[port]}",
            effect=f"left as it is, and no cluster can use it, until '{adopt}'",
        )


def _taken_off(found: Compared) -> Iterator[OtherUse]:
    """Yield the managed ports that carry VLANs which no cluster has, or all VLANs: the change takes them off."""
    difference = found.difference
    if not isinstance(difference, SwitchDifference):
        return
    for port, vlans in difference.remove.items():
        others = vlans - found.owned
        if others and port not in found.refused:
            yield OtherUse(
                element=found.element,
                site=found.site,
                vlans=others,
                ports=(port,),
                found=f"port {port} carries VLAN {others}, which no cluster has",
                effect="taken off the port",
                asks=True,
            )
    for port in (one for one in difference.close if one not in found.refused):
        yield OtherUse(
            element=found.element,
            site=found.site,
            ports=(port,),
            found=f"port {port} carries VLANs outside the pool, or every VLAN",
            effect="the port gets a list of its own",
            asks=True,
        )
