from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from virtcloud.agent.guests.domains import NAMESPACE, DomainEnvironment, DomainOwnership, parse_ownership, render_domain
from virtcloud.agent.guests.images import LxcImage, QemuImage
from virtcloud.model.wanted import GuestWanted, Segment

MakeXml = Callable[..., ET.Element]
MakeGuest = Callable[..., GuestWanted]
LXC = LxcImage(kind="lxc", rootfs=Path("/images/busybox/rootfs"), init="/sbin/init", arguments=("-v",))
QEMU = QemuImage(
    kind="qemu", kernel=Path("/images/k/vmlinuz"), initrd=Path("/images/k/initrd"), cmdline="console=ttyS0"
)
SITE = DomainEnvironment("x86_64", Path("/guests/g1"))


@pytest.fixture
def xml(make_segment: Callable[..., Segment]) -> Callable[..., ET.Element]:
    def make(image: LxcImage | QemuImage, site: DomainEnvironment = SITE, cluster: str = "4c1f") -> ET.Element:
        one = make_segment(cluster, 100, ("g1",))
        return ET.fromstring(render_domain(one, one.guests[0], image, "abc", site))  # noqa: S314 - our own

    return make


def at(element: ET.Element, path: str) -> dict[str, str]:
    found = element.find(path)
    assert found is not None, path
    return found.attrib


@pytest.mark.parametrize("image", [LXC, QEMU])
def test_a_guest_has_name_size_and_bridge(xml: MakeXml, image: LxcImage | QemuImage) -> None:
    domain = xml(image)
    texts = [domain.findtext("name"), domain.findtext("memory"), domain.findtext("vcpu")]
    interface = [at(domain, f"devices/interface/{tag}") for tag in ("mac", "source", "target")]
    assert texts == ["vc-4c1f-g1", "64", "1"]
    assert interface == [{"address": "02:00:00:00:00:01"}, {"bridge": "br100"}, {"dev": "vc100-eb10cffb"}]


def test_the_ownership_element_is_read_back(xml: MakeXml) -> None:
    mark = xml(LXC).find(f"metadata/{{{NAMESPACE}}}guest")
    assert mark is not None
    assert parse_ownership(ET.tostring(mark, encoding="unicode")) == DomainOwnership("4c1f", "g1", "abc")


def test_equal_guests_differ_only_by_their_cluster(xml: MakeXml) -> None:
    first, second = xml(LXC), xml(LXC, cluster="77aa")
    assert (first.findtext("name"), second.findtext("name")) == ("vc-4c1f-g1", "vc-77aa-g1")
    assert at(first, "devices/interface/target") != at(second, "devices/interface/target")
    assert at(first, "devices/interface/mac") == at(second, "devices/interface/mac")


def test_a_container_shares_a_read_only_root(xml: MakeXml) -> None:
    shared, *own = xml(LXC).findall("devices/filesystem")
    assert (at(shared, "source"), shared.find("readonly") is not None) == ({"dir": "/images/busybox/rootfs"}, True)
    assert [(one.get("type"), at(one, "target")["dir"]) for one in own] == [("ram", "/run"), ("ram", "/tmp")]  # noqa: S108 - inside the guest


def test_a_container_gets_its_address_on_eth0(xml: MakeXml) -> None:
    domain = xml(LXC)
    assert at(domain, "devices/interface/ip") == {"address": "10.0.0.1", "family": "ipv4", "prefix": "24"}
    assert at(domain, "devices/interface/guest") == {"dev": "eth0"}


def test_a_container_starts_the_images_init(xml: MakeXml) -> None:
    assert [one.text for one in xml(LXC).findall("os/*")[:3]] == ["exe", "/sbin/init", "-v"]


def test_an_ipv6_address_is_said_to_be_one(make_segment: Callable[..., Segment], make_guest: MakeGuest) -> None:
    one = make_segment("a", 100)
    domain = ET.fromstring(render_domain(one, make_guest(addresses=["fd00::1/64"]), LXC, "", SITE))  # noqa: S314 - our own
    assert at(domain, "devices/interface/ip") == {"address": "fd00::1", "family": "ipv6", "prefix": "64"}


def test_a_machine_is_booted_directly_and_told_its_address(xml: MakeXml) -> None:
    domain = xml(QEMU)
    assert (domain.findtext("os/kernel"), domain.findtext("os/initrd")) == ("/images/k/vmlinuz", "/images/k/initrd")
    assert domain.findtext("os/cmdline") == "console=ttyS0 virtcloud.guest=g1 virtcloud.address=10.0.0.1/24"


def test_a_machine_writes_its_console_to_a_file(xml: MakeXml) -> None:
    assert at(xml(QEMU), "devices/serial/source") == {"path": "/guests/g1/console.log", "append": "on"}


def test_a_machines_disk_is_an_overlay_over_the_images(xml: MakeXml) -> None:
    domain = xml(QEMU.model_copy(update={"disk": Path("/images/k/disk.img"), "disk_format": "raw"}))
    disk = [at(domain, f"devices/disk/{tag}") for tag in ("driver", "source", "backingStore/format")]
    assert disk == [{"name": "qemu", "type": "qcow2"}, {"file": "/guests/g1/disk.qcow2"}, {"type": "raw"}]
    assert at(domain, "devices/disk/backingStore/source") == {"file": "/images/k/disk.img"}


@pytest.mark.parametrize(("accelerated", "kind"), [(True, "kvm"), (False, "qemu")])
def test_the_processor_is_used_or_emulated(xml: MakeXml, accelerated: bool, kind: str) -> None:
    assert xml(QEMU, DomainEnvironment("x86_64", Path("/x"), accelerated)).get("type") == kind


def test_only_the_settings_disable_the_security_driver(xml: MakeXml) -> None:
    confined, loose = (
        xml(LXC).find("seclabel"),
        xml(LXC, DomainEnvironment("x86_64", Path("/x"), confined=False)).find("seclabel"),
    )
    assert (confined, loose is not None and loose.attrib) == (None, {"type": "none"})
