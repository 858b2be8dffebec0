"""The XML of a guest's libvirt domain. Pure.

Source of the format: https://libvirt.org/formatdomain.html
"""

import string
from ipaddress import ip_interface
from pathlib import Path
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.container_disks import DISKS
from virtcloud.agent.guests.control_groups import CPU_PERIOD_US
from virtcloud.agent.guests.domains import NAMESPACE, DomainEnvironment, DomainOwnership
from virtcloud.agent.guests.guest_disks import DISK, extra_disk_file
from virtcloud.agent.guests.guest_files import CONSOLE
from virtcloud.agent.guests.id_ranges import IDS_PER_GUEST
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage
from virtcloud.agent.guests.machine_devices import (
    SEED_LETTER,
    MachineDevices,
    add_console,
    add_disk_driver,
    add_disk_target,
    add_system_type,
    choose_devices,
)
from virtcloud.agent.guests.peer_files import PEERS
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.guests.seed_images import SEED
from virtcloud.agent.guests.seeds import VIRTCLOUD_FOLDER
from virtcloud.agent.host_services.dnsmasq_config import list_routers
from virtcloud.agent.network import names
from virtcloud.model.wanted import GuestWanted, Segment

LXC_EMULATOR = "/usr/lib/libvirt/libvirt_lxc"
WRITABLE_FOLDERS = ("/run", "/tmp")  # noqa: S108 - folders inside the guest
WRITABLE_FOLDER_MIB = 64
DISK_FOLDER = "/mnt"
"""The folder in the container for its extra disks."""
KILOBYTES_PER_MBIT = 125


def render_domain(
    segment: Segment, guest: GuestWanted, image: GuestImage, digest: str, environment: DomainEnvironment
) -> str:
    """Return the XML of a guest's domain. Raise ValueError for a container if ``environment`` has no root."""
    kind = "lxc" if isinstance(image, LxcImage) else _choose_devices(image, environment).kind
    root = ET.Element("domain", type=kind)
    _add(root, "name", names.domain_name(segment.id, guest.name))
    _add(root, "memory", str(guest.memory_mb), unit="MiB")
    _add(root, "vcpu", str(guest.cpus))
    root.append(_metadata(DomainOwnership(segment.id, guest.name, digest, guest.starts or 0)))
    if not environment.confined:
        _add(root, "seclabel", type="none")
    if isinstance(image, LxcImage):
        if environment.root is None:
            raise ValueError(f"the container {guest.name} has no root")
        if environment.group is not None:
            _add(_add(root, "resource"), "partition", environment.group)
        _add_container(root, image, segment, guest, environment.root)
        if guest.seed:
            _add_peer_folder(_find_devices(root), environment.folder / PEERS)
        for disk in guest.disks or ():
            _add_folder(_find_devices(root), environment.folder / DISKS / disk.name, f"{DISK_FOLDER}/{disk.name}")
    else:
        _add_virtual_machine(root, image, segment, guest, environment)
        if guest.seed:
            _add_seed(_find_devices(root), environment.folder / SEED, _choose_devices(image, environment))
    return ET.tostring(root, encoding="unicode")


def _add_container(
    root: ET.Element, image: LxcImage, segment: Segment, guest: GuestWanted, guest_root: GuestRoot
) -> None:
    _add_id_map(root, guest_root.id_shift)
    tuning = _add(root, "cputune")
    _add(tuning, "period", str(CPU_PERIOD_US))
    _add(tuning, "quota", str(guest.cpus * CPU_PERIOD_US))
    system = _add(root, "os")
    _add(system, "type", "exe")
    _add(system, "init", image.init)
    for argument in image.arguments:
        _add(system, "initarg", argument)
    _add(system, "initenv", guest.name, name="VIRTCLOUD_GUEST")
    if guest.addresses:  # libvirt refuses a variable without a value
        _add(system, "initenv", " ".join(guest.addresses), name="VIRTCLOUD_ADDRESS")
    devices = _add(root, "devices")
    _add(devices, "emulator", LXC_EMULATOR)
    _add_filesystems(devices, guest_root.folder)
    _add(devices, "console", type="pty")
    interface = _add_interface(devices, segment, guest)
    for address in guest.addresses:
        parsed = ip_interface(address)
        _add(
            interface, "ip", address=str(parsed.ip), family=f"ipv{parsed.version}", prefix=str(parsed.network.prefixlen)
        )
    for router in list_routers(segment, guest):
        any_address, family = ("::", "ipv6") if ":" in router else ("0.0.0.0", "ipv4")  # noqa: S104 - a route
        _add(interface, "route", family=family, address=any_address, prefix="0", gateway=router)
    _add(interface, "guest", dev="eth0")
    _add(interface, "link", state="up")


def _add_id_map(root: ET.Element, shift: int) -> None:
    """Add the user namespace: an ID n in the container is the ID n + ``shift`` on the host."""
    id_map = _add(root, "idmap")
    for kind in ("uid", "gid"):
        _add(id_map, kind, start="0", target=str(shift), count=str(IDS_PER_GUEST))


def _add_filesystems(devices: ET.Element, folder: Path) -> None:
    _add_folder(devices, folder, "/")
    for writable_folder in WRITABLE_FOLDERS:
        writable = _add(devices, "filesystem", type="ram")
        _add(writable, "source", usage=str(WRITABLE_FOLDER_MIB), units="MiB")
        _add(writable, "target", dir=writable_folder)


def _choose_devices(image: QemuImage, environment: DomainEnvironment) -> MachineDevices:
    return choose_devices(xen=environment.xen, accelerated=environment.accelerated, has_kernel=image.kernel is not None)


def _add_virtual_machine(
    root: ET.Element, image: QemuImage, segment: Segment, guest: GuestWanted, environment: DomainEnvironment
) -> None:
    system, machine = _add(root, "os"), _choose_devices(image, environment)
    add_system_type(system, machine, environment.architecture)
    if image.kernel:
        _add(system, "kernel", str(image.kernel))
        if image.initrd:
            _add(system, "initrd", str(image.initrd))
        _add(system, "cmdline", _cmdline(image.cmdline, guest))
    else:
        _add(system, "boot", dev="hd")
    if not machine.paravirtualized:
        _add(_add(root, "features"), "acpi")
    if environment.accelerated:
        _add(root, "cpu", mode="host-passthrough")
    devices = _add(root, "devices")
    if image.disk:
        overlay = environment.folder / DISK
        disk = _add_disk(devices, overlay, image.disk, image.disk_format, shared=environment.shared)
        add_disk_driver(disk, machine, type="qcow2")
        add_disk_target(disk, machine, "a")
    for letter, extra in zip(string.ascii_lowercase[1:], guest.disks or (), strict=False):
        disk = _add_extra_disk(devices, environment.folder / extra_disk_file(extra.name))
        add_disk_driver(disk, machine, type="raw", discard="unmap")
        add_disk_target(disk, machine, letter)
        _add(disk, "serial", extra.name)
    _add(_add_interface(devices, segment, guest), "model", type=machine.interface)
    add_console(devices, machine, environment.folder / CONSOLE)
    if not machine.is_xen:
        _add(_add(devices, "rng", model="virtio"), "backend", "/dev/urandom", model="random")


def _cmdline(image_cmdline: str, guest: GuestWanted) -> str:
    return " ".join(
        [
            image_cmdline,
            f"virtcloud.guest={guest.name}",
            *(f"virtcloud.address={address}" for address in guest.addresses),
        ]
    )


def _add_disk(devices: ET.Element, overlay: Path, disk: Path, disk_format: str, *, shared: bool) -> ET.Element:
    element = _add(devices, "disk", type="file", device="disk")
    _add(element, "source", file=str(overlay))
    backing = _add(element, "backingStore", type="file")
    _add(backing, "format", type=disk_format)
    source = _add(backing, "source", file=str(disk))
    if shared:
        _add(source, "seclabel", model="dac", relabel="no")  # otherwise QEMU's user would own the image's disk
    _add(backing, "backingStore")  # an image's disk must not refer to another file of the host
    return element


def _find_devices(root: ET.Element) -> ET.Element:
    devices = root.find("devices")
    if devices is None:
        raise ValueError("the domain has no devices")
    return devices


def _add_peer_folder(devices: ET.Element, folder: Path) -> None:
    _add(_add_folder(devices, folder, VIRTCLOUD_FOLDER), "readonly")


def _add_folder(devices: ET.Element, folder: Path, target: str) -> ET.Element:
    element = _add(devices, "filesystem", type="mount")
    _add(element, "source", dir=str(folder))
    _add(element, "target", dir=target)
    return element


def _add_seed(devices: ET.Element, image: Path, machine: MachineDevices) -> None:
    """Add the seed as a read-only disk, the last disk, so that the names of other disks do not change.

    Kernels for clouds lack drivers of emulated CD-ROM drives. cloud-init finds the disk by its volume label.
    """
    element = _add(devices, "disk", type="file", device="disk")
    _add(element, "driver", name="qemu", type="raw")
    _add(element, "source", file=str(image))
    add_disk_target(element, machine, SEED_LETTER)
    _add(element, "readonly")


def _add_extra_disk(devices: ET.Element, file: Path) -> ET.Element:
    element = _add(devices, "disk", type="file", device="disk")
    _add(element, "source", file=str(file))
    return element


def _add_interface(devices: ET.Element, segment: Segment, guest: GuestWanted) -> ET.Element:
    interface = _add(devices, "interface", type="bridge")
    _add(interface, "mac", address=guest.mac)
    _add(interface, "source", bridge=names.bridge_name(segment.vlan))
    _add(interface, "target", dev=names.guest_port_name(segment.id, guest.name, segment.vlan))
    if segment.mtu is not None:
        _add(interface, "mtu", size=str(segment.mtu))
    if guest.limits and guest.limits.bandwidth_mbit:
        bandwidth = _add(interface, "bandwidth")
        for direction in ("inbound", "outbound"):
            _add(bandwidth, direction, average=str(guest.limits.bandwidth_mbit * KILOBYTES_PER_MBIT))
    return interface


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def _metadata(owner: DomainOwnership) -> ET.Element:
    metadata = ET.Element("metadata")
    attributes = {"cluster": owner.cluster, "guest": owner.guest, "digest": owner.digest}
    if owner.starts:
        attributes["starts"] = str(owner.starts)
    ET.SubElement(metadata, "virtcloud:guest", {"xmlns:virtcloud": NAMESPACE, **attributes})
    return metadata
