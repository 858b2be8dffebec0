"""What is in other use on a device, as a dry run shows it to an administrator. Pure.

Each kind of finding is a function that yields :class:`OtherUse`; :func:`other_use` lists them all.
"""

from collections.abc import Collection, Iterator

from virtcloud.model.device import DeviceCarried, DeviceDifference
from virtcloud.model.preview import OtherUse
from virtcloud.model.values import Name, PortName
from virtcloud.model.wanted import SwitchCarried, SwitchDifference


def other_use(
    element: Name, site: Name, difference: DeviceDifference, carried: DeviceCarried, adopted: Collection[PortName] = ()
) -> tuple[OtherUse, ...]:
    """Return every use by others that reading a device showed, in the order in which they are listed."""
    if not isinstance(difference, SwitchDifference) or not isinstance(carried, SwitchCarried):
        return ()
    refused = [port for port in carried.in_use if port not in adopted]
    return (
        *_ports_in_use(element, site, carried, refused),
        *_taken_off(element, site, difference, refused),
    )


def _ports_in_use(
    element: Name, site: Name, carried: SwitchCarried, refused: Collection[PortName]
) -> Iterator[OtherUse]:
    """Yield the managed ports in other use that nobody adopted: SBF changes none of them."""
    for port in refused:
        effect = f"left as it is, and no cluster can use it, until 'virtcloud element adopt {element} {port}'"
        found = f"managed port {port} is {carried.untaken[port]}"
        yield OtherUse(element=element, site=site, ports=(port,), found=found, effect=effect)


def _taken_off(
    element: Name, site: Name, difference: SwitchDifference, refused: Collection[PortName]
) -> Iterator[OtherUse]:
    """Yield the managed ports that carry VLANs which no cluster has, or all VLANs: the change takes them off."""
    for port, vlans in difference.remove.items():
        if port in refused:
            continue
        found, effect = f"port {port} carries VLAN {vlans}, which no cluster has", "taken off the port"
        yield OtherUse(element=element, site=site, vlans=vlans, ports=(port,), found=found, effect=effect, asks=True)
    for port in (one for one in difference.close if one not in refused):
        found = f"port {port} carries VLANs outside the pool, or every VLAN"
        yield OtherUse(
            element=element, site=site, ports=(port,), found=found, effect="the port gets a list of its own", asks=True
        )
