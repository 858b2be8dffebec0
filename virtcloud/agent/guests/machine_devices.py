"""The devices of virtual machines, which differ between QEMU and Xen. Pure.

On Xen, a machine whose image has a kernel is paravirtualized (PV). The other machines on Xen are like a PC (HVM): Xen's
BIOS boots from the disk ``hda``, which Linux then uses as ``xvda``.

Sources: https://libvirt.org/drvxen.html, https://libvirt.org/formatdomain.html, xl-disk-configuration(5)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

SEED_LETTER: Final = "z"
"""The letter of the seed's disk, as in ``vdz``. The other disks have earlier letters."""


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """The devices of a virtual machine. ``kind`` is libvirt's type of the domain.

    ``bus`` is the bus of disks. ``prefix`` is the beginning of the disks' names in the guest, for example ``vd``.
    ``interface`` is the model of network interfaces.
    """

    kind: str
    bus: str = "virtio"
    prefix: str = "vd"
    interface: str = "virtio"
    paravirtualized: bool = False

    @property
    def is_xen(self) -> bool:
        """Whether the machine runs on Xen."""
        return self.kind == "xen"


def choose_devices(*, xen: bool, accelerated: bool, has_kernel: bool) -> MachineDevices:
    """Return the devices of a machine. ``accelerated``: KVM is available. ``has_kernel``: the image has a kernel."""
    if xen:
        return MachineDevices("xen", "xen", "xvd", "netfront", paravirtualized=has_kernel)
    return MachineDevices("kvm" if accelerated else "qemu")


def add_system_type(system: ET.Element, devices: MachineDevices, architecture: str) -> None:
    """Add the type of the machine to the element ``os``."""
    machine = {"machine": "xenpv" if devices.paravirtualized else "xenfv"} if devices.is_xen else {}
    element = ET.SubElement(system, "type", {"arch": architecture, **machine})
    element.text = "linux" if devices.paravirtualized else "hvm"


def add_disk_driver(disk: ET.Element, devices: MachineDevices, **attributes: str) -> None:
    """Add the element ``driver`` to a writable disk.

    On QEMU, the guest gets an error if the host cannot write. By default, QEMU pauses the guest when the host's disk is
    full (``enospace``), and only an administrator can resume the guest. libvirt's driver for Xen has no error policy.
    """
    policy = {} if devices.is_xen else {"error_policy": "report"}
    ET.SubElement(disk, "driver", {"name": "qemu", **attributes, **policy})


def add_disk_target(disk: ET.Element, devices: MachineDevices, letter: str) -> None:
    """Add the element ``target`` to a disk: its name in the guest, ending with ``letter``, and its bus."""
    boots_on_xen = devices.is_xen and not devices.paravirtualized and letter == "a"
    name, bus = ("hda", "ide") if boots_on_xen else (f"{devices.prefix}{letter}", devices.bus)
    ET.SubElement(disk, "target", dev=name, bus=bus)


def add_console(parent: ET.Element, devices: MachineDevices, log: Path) -> None:
    """Add the console. On QEMU, libvirt writes the console's output to ``log``; on Xen, the agent writes this file."""
    if devices.paravirtualized:
        ET.SubElement(ET.SubElement(parent, "console", type="pty"), "target", type="xen")
        return
    serial = ET.SubElement(parent, "serial", type="pty")
    if not devices.is_xen:
        ET.SubElement(serial, "log", file=str(log), append="on")
