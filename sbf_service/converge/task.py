"""What one look at a switch is about, read from the database in one transaction."""

from dataclasses import dataclass

from sbf_service.drivers.driver import Managed
from sbf_service.store.elements import kept_by, target_of
from sbf_service.store.pools import cluster_keys, managed_vlans
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Store
from virtcloud.model.topology import Switch
from virtcloud.model.values import Name, VlanId
from virtcloud.model.wanted import SwitchWanted


@dataclass(frozen=True, slots=True)
class Task:
    """A switch, what it must carry and may be touched of it, and under which fencing number.

    ``kept`` is what it was confirmed to carry already, of what is wanted.
    """

    switch: Switch
    site: Name
    fence: int
    revision: int
    confirmed: int
    wanted: SwitchWanted
    kept: SwitchWanted
    managed: Managed
    users: dict[VlanId, str]


def read_task(store: Store, name: Name, fence: int) -> Task:
    """Read it all in one snapshot. Raises NotFound."""
    with store.read() as unit:
        target = target_of(unit, name)
        topology = read_topology(unit)
        switch, site = topology.element(name), topology.site_of[name].name
        if not isinstance(switch, Switch) or not isinstance(target.wanted, SwitchWanted):
            raise TypeError(f"{name} is not a switch")
        kept = kept_by(unit, name)
        managed = Managed(switch.ports, managed_vlans(unit, site), target.wanted.access)
        users = {vlan: str(key) for vlan, key in cluster_keys(unit, site).items()}
        return Task(switch, site, fence, target.revision, target.confirmed, target.wanted, kept, managed, users)
