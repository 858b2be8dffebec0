"""PURE. A guest as a libvirt domain (https://libvirt.org/formatdomain.html)."""

from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.guest_files import CONSOLE, DISK
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage
from virtcloud.agent.network import names
from virtcloud.model.wanted import GuestWanted, Segment

NAMESPACE = "urn:virtcloud:libvirt:1"
"""Of the metadata element that marks a domain as ours."""
LXC_EMULATOR = "/usr/lib/libvirt/libvirt_lxc"
OWN_FOLDERS = ("/run", "/tmp")  # noqa: S108 - folders inside the guest
OWN_FOLDER_MIB = 64


@dataclass(frozen=True, slots=True)
class DomainOwnership:
    """What the metadata element says: whose guest this is, and which wanted document it was made from."""

    cluster: str
    guest: str
    digest: str


@dataclass(frozen=True, slots=True)
class DomainEnvironment:
    """What a domain needs to know of its machine; ``folder`` is the guest's own."""

    architecture: str
    folder: Path
    accelerated: bool = False
    confined: bool = True


def render_domain(segment: Segment, guest: GuestWanted, image: GuestImage, digest: str, site: DomainEnvironment) -> str:
    """Write the domain."""
    kind = "lxc" if isinstance(image, LxcImage) else "kvm" if site.accelerated else "qemu"
    root = ET.Element("domain", type=kind)
    _add(root, "name", names.domain_name(segment.id, guest.name))
    _add(root, "memory", str(guest.memory_mb), unit="MiB")
    _add(root, "vcpu", str(guest.cpus))
    root.append(_metadata(DomainOwnership(segment.id, guest.name, digest)))
    if not site.confined:
        _add(root, "seclabel", type="none")
    if isinstance(image, LxcImage):
        _add_container(root, image, segment, guest)
    else:
        _add_virtual_machine(root, image, segment, guest, site)
    return ET.tostring(root, encoding="unicode")


def parse_ownership(metadata: str) -> DomainOwnership:
    """Read the metadata element back; raises :class:`KeyError` or ParseError when it is not ours."""
    attributes = ET.fromstring(metadata).attrib  # noqa: S314 - libvirt wrote it
    return DomainOwnership(attributes["cluster"], attributes["guest"], attributes["digest"])


def _metadata(owner: DomainOwnership) -> ET.Element:
    metadata = ET.Element("metadata")
    attributes = {"cluster": owner.cluster, "guest": owner.guest, "digest": owner.digest}
    ET.SubElement(metadata, "virtcloud:guest", {"xmlns:virtcloud": NAMESPACE, **attributes})
    return metadata


def _add_container(root: ET.Element, image: LxcImage, segment: Segment, guest: GuestWanted) -> None:
    system = _add(root, "os")
    _add(system, "type", "exe")
    _add(system, "init", image.init)
    for argument in image.arguments:
        _add(system, "initarg", argument)
    _add(system, "initenv", guest.name, name="VIRTCLOUD_GUEST")
    _add(system, "initenv", " ".join(guest.addresses), name="VIRTCLOUD_ADDRESS")
    devices = _add(root, "devices")
    _add(devices, "emulator", LXC_EMULATOR)
    _add_filesystems(devices, image.rootfs)
    _add(devices, "console", type="pty")
    interface = _add_interface(devices, segment, guest)
    for address in guest.addresses:
        parsed = ip_interface(address)
        _add(
            interface, "ip", address=str(parsed.ip), family=f"ipv{parsed.version}", prefix=str(parsed.network.prefixlen)
        )
    _add(interface, "guest", dev="eth0")
    _add(interface, "link", state="up")


def _add_filesystems(devices: ET.Element, rootfs: Path) -> None:
    shared = _add(devices, "filesystem", type="mount")
    _add(shared, "source", dir=str(rootfs))
    _add(shared, "target", dir="/")
    _add(shared, "readonly")
    for folder in OWN_FOLDERS:
        own = _add(devices, "filesystem", type="ram")
        _add(own, "source", usage=str(OWN_FOLDER_MIB), units="MiB")
        _add(own, "target", dir=folder)


def _add_virtual_machine(
    root: ET.Element, image: QemuImage, segment: Segment, guest: GuestWanted, site: DomainEnvironment
) -> None:
    system = _add(root, "os")
    _add(system, "type", "hvm", arch=site.architecture)
    _add(system, "kernel", str(image.kernel))
    if image.initrd:
        _add(system, "initrd", str(image.initrd))
    _add(system, "cmdline", _cmdline(image.cmdline, guest))
    _add(_add(root, "features"), "acpi")
    if site.accelerated:
        _add(root, "cpu", mode="host-passthrough")
    devices = _add(root, "devices")
    if image.disk:
        _add_disk(devices, site.folder / DISK, image.disk, image.disk_format)
    _add(_add_interface(devices, segment, guest), "model", type="virtio")
    _add(_add(devices, "serial", type="file"), "source", path=str(site.folder / CONSOLE), append="on")
    _add(_add(devices, "rng", model="virtio"), "backend", "/dev/urandom", model="random")


def _cmdline(words: str, guest: GuestWanted) -> str:
    return " ".join([words, f"virtcloud.guest={guest.name}", *(f"virtcloud.address={one}" for one in guest.addresses)])


def _add_disk(devices: ET.Element, overlay: Path, disk: Path, disk_format: str) -> None:
    """Add the guest's own disk: an overlay that takes what the guest writes, over the image's disk."""
    element = _add(devices, "disk", type="file", device="disk")
    _add(element, "driver", name="qemu", type="qcow2")
    _add(element, "source", file=str(overlay))
    backing = _add(element, "backingStore", type="file")
    _add(backing, "format", type=disk_format)
    _add(backing, "source", file=str(disk))
    _add(element, "target", dev="vda", bus="virtio")


def _add_interface(devices: ET.Element, segment: Segment, guest: GuestWanted) -> ET.Element:
    interface = _add(devices, "interface", type="bridge")
    _add(interface, "mac", address=guest.mac)
    _add(interface, "source", bridge=names.bridge_name(segment.vlan))
    _add(interface, "target", dev=names.guest_port_name(segment.id, guest.name, segment.vlan))
    return interface


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element
