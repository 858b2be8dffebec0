"""What is in other use on a device, as a dry run shows it to an administrator. Pure.

Each kind of finding is a function that yields :class:`OtherUse`; :func:`other_use` lists them all.
"""

from collections.abc import Iterator

from virtcloud.model.device import DeviceDifference
from virtcloud.model.preview import OtherUse
from virtcloud.model.values import Name
from virtcloud.model.wanted import SwitchDifference


def other_use(element: Name, site: Name, difference: DeviceDifference) -> tuple[OtherUse, ...]:
    """Return every use by others that reading a device showed, in the order in which they are listed."""
    return tuple(_taken_off(element, site, difference) if isinstance(difference, SwitchDifference) else ())


def _taken_off(element: Name, site: Name, difference: SwitchDifference) -> Iterator[OtherUse]:
    """Yield the managed ports that carry VLANs which no cluster has, or all VLANs: the change takes them off."""
    for port, vlans in difference.remove.items():
        found, effect = f"port {port} carries VLAN {vlans}, which no cluster has", "taken off the port"
        yield OtherUse(element=element, site=site, vlans=vlans, ports=(port,), found=found, effect=effect, asks=True)
    for port in difference.close:
        found = f"port {port} carries VLANs outside the pool, or every VLAN"
        yield OtherUse(
            element=element, site=site, ports=(port,), found=found, effect="the port gets a list of its own", asks=True
        )
