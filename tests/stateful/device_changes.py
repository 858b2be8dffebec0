"""Changes that administrators make to the devices of a topology: ports, VLANs, and replaced devices."""

from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError
from stateful.topology_invariants import OFFICES, OLD_VLAN, TopologyInvariants
from support.sbf_fakes.edges import FakeEdge
from support.sbf_fakes.switches import FakeSwitch
from support.sbf_fakes.topology_changes import SITES, Choice, drop_element

from sbf_service.store.elements.unchecked_elements import declare_element_clean
from sbf_service.store.tables.tables import PortRow
from virtcloud.model.element import Device, Switch
from virtcloud.model.errors import IllegalTransition, VirtcloudError
from virtcloud.model.port_use import PortUse
from virtcloud.model.topology import Topology
from virtcloud.model.values import VlanId

NAMES = [f"{site}-{end}" for site in SITES for end in ("sw1", "sw2", "pe1")]
USE = PortUse(mode="access", access=VlanId(20))
"""The configuration of a port in other use."""


def has_fault(device: FakeSwitch | FakeEdge) -> bool:
    return device.cut_off or device.refuses or device.lies or device.unsafe or device.cut_off_after is not None


class DeviceChanges(TopologyInvariants):
    """SBF and its devices, with the actions of administrators at the devices."""

    def try_change(self, change: Callable[[], object], *, exactly: bool = True) -> None:
        before = self.read_database() if exactly else None
        try:
            change()
        except IllegalTransition:
            raise
        except VirtcloudError:
            assert not exactly or self.read_database() == before, "a refused change has changed the database"

    def use_a_port_for_something_else(self, choose: Choice) -> None:
        switches = [one for one in self.world.topology().elements.values() if isinstance(one, Switch)]
        if (switch := choose(switches)) is None:
            return
        port, device = choose.choice(switch.ports), self.world.switches[switch.name]
        with self.world.store.read() as unit:
            known = unit.session.get(PortRow, (switch.name, port)) is not None
        carries = any(ports.get(port) for ports in (device.ports, device.startup[0]))
        if known and choose.random() < 0.5:
            self.try_change(lambda: self.release(switch.name, port, forget=choose.random() < 0.2))
        elif (switch.name, port) in self.occupied:
            self.try_change(lambda: self.adopt(switch.name, port))
        elif not known and not carries:
            device.occupy(port, USE)
            self.occupied[switch.name, port] = USE

    def create_or_delete_a_vlan(self, choose: Choice) -> None:
        name, vlan = choose.choice(NAMES), choose.choice((100, 101, 102, 103))
        switch = self.world.switches[name]
        assert switch.table is not None
        ports = (*switch.ports.values(), *switch.startup[0].values())
        if vlan in self.offices[name]:
            self.offices[name].remove(vlan)
            del switch.table[vlan]
        elif vlan not in switch.table and not any(vlan in vlans for vlans in ports):
            self.offices[name].add(vlan)
            switch.table[vlan] = OFFICES

    def replace_a_device(self, choose: Choice) -> None:
        """Replace a device by another one with the same name, and perhaps with another address."""
        devices = [one.name for one in self.world.topology().elements.values() if isinstance(one, Device)]
        if (name := choose(devices)) is not None:
            self.expect_loss(name)
            self.install_another_device(name, choose)
            if choose.random() < 0.6:
                self.describe_another_device(name, choose)

    def remove_a_device(self, choose: Choice) -> None:
        """Remove a device and its links from the topology: if possible, a switch with a VLAN for offices."""
        document = self.world.topology().model_dump(mode="json", exclude_none=True)
        devices = [one for site in document["sites"] for one in (*site["switches"], *site["edges"])]
        if (device := choose([one for one in devices if self.offices[one["name"]]]) or choose(devices)) is not None:
            site = next(site for site in document["sites"] if device in (*site["switches"], *site["edges"]))
            drop_element(document, site, device["name"])
            with suppress(ValidationError):  # the edge of a transport may be linked to the switch
                wanted = Topology.model_validate(document)
                self.try_change(lambda: self.world.put_topology(wanted))

    def install_another_device(self, name: str, choose: Choice) -> None:
        """Replace a device by another one without configuration, or with an old VLAN of another SBF."""
        switch, edge = self.find_devices(name)
        switch.replace({1: "default"} | ({OLD_VLAN: f"vc-{OLD_VLAN}"} if choose.random() < 0.3 else {}))
        edge.circuits, edge.startup = set(), frozenset()
        self.used.add(name)
        self.offices[name].clear()
        self.occupied = {key: use for key, use in self.occupied.items() if key[0] != name}

    def describe_another_device(self, name: str, choose: Choice) -> None:
        document = self.world.topology().model_dump(mode="json", exclude_none=True)
        for site in document["sites"]:
            for device in (one for one in (*site["switches"], *site["edges"]) if one["name"] == name):
                addresses = [f"192.0.2.{number}" for number in range(1, 251)]
                device["address"] = choose.choice([one for one in addresses if one != device.get("address")])
        self.world.put_topology(Topology.model_validate(document))

    def declare_an_element_clean(self, choose: Choice) -> None:
        if (name := choose(list(self.world.topology().elements))) is not None:
            with self.world.store.change(who="operator") as unit:
                declare_element_clean(unit, name, "checked")

    # Faults.

    def begin_or_end_a_fault(self, choose: Choice) -> None:
        """Begin a fault of a device, or end all its faults. At most two devices have faults at the same time."""
        faulty = [name for name in NAMES if any(has_fault(device) for device in self.find_devices(name))]
        if len(faulty) > 1 or (faulty and choose.random() < 0.5):
            self.end_faults(choose.choice(faulty))
            return
        fault = choose.choice(("cut_off", "cut_off", "refuses", "lies", "unsafe"))
        for device in self.find_devices(
            choose([one.name for one in self.world.topology().elements.values() if isinstance(one, Device)])
            or choose.choice(NAMES)
        ):
            setattr(device, fault, True)

    def restart_a_device(self, choose: Choice) -> None:
        name = choose.choice(NAMES)
        self.world.switches[name].reboot()  # the VLAN table stays
        self.world.edges[name].circuits = set(self.world.edges[name].startup)
