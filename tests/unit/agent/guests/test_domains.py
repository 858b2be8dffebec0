from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from virtcloud.agent.guests.domain_xml import render_domain
from virtcloud.agent.guests.domains import NAMESPACE, DomainEnvironment, DomainOwnership, parse_ownership
from virtcloud.agent.guests.images import LxcImage, QemuImage
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.model.wanted import GuestWanted, Segment

MakeXml = Callable[..., ET.Element]
MakeGuest = Callable[..., GuestWanted]
LXC = LxcImage(kind="lxc", rootfs=Path("/images/busybox/rootfs"), init="/sbin/init", arguments=("-v",))
QEMU = QemuImage(
    kind="qemu", kernel=Path("/images/k/vmlinuz"), initrd=Path("/images/k/initrd"), cmdline="console=ttyS0"
)
ENVIRONMENT = DomainEnvironment("x86_64", Path("/guests/g1"), root=GuestRoot(Path("/guests/g1/root"), 1 << 28))


@pytest.fixture
def xml(make_segment: Callable[..., Segment]) -> Callable[..., ET.Element]:
    def make(
        image: LxcImage | QemuImage,
        environment: DomainEnvironment = ENVIRONMENT,
        cluster: str = "4c1f",
        starts: int | None = None,
    ) -> ET.Element:
        segment = make_segment(cluster, 100, ("g1",))
        guest = segment.guests[0].model_copy(update={"starts": starts})
        return ET.fromstring(render_domain(segment, guest, image, "abc", environment))  # noqa: S314 - written by the agent

    return make


def attributes_of(element: ET.Element, path: str) -> dict[str, str]:
    found = element.find(path)
    assert found is not None, path
    return found.attrib


@pytest.mark.parametrize("image", [LXC, QEMU])
@pytest.mark.parametrize(("mtu", "sizes"), [(None, []), (1450, ["1450"])])
def test_a_guests_interface_has_the_mtu_of_its_cluster(
    make_segment: Callable[..., Segment], image: LxcImage | QemuImage, mtu: int | None, sizes: list[str]
) -> None:
    segment = make_segment("4c1f", 100, ("g1",)).model_copy(update={"mtu": mtu})
    root = ET.fromstring(render_domain(segment, segment.guests[0], image, "abc", ENVIRONMENT))  # noqa: S314 - written by the agent
    assert [element.attrib["size"] for element in root.findall("devices/interface/mtu")] == sizes


def test_a_containers_default_route_is_in_its_own_subnets(make_segment: Callable[..., Segment]) -> None:
    routers = ("10.0.0.250/24", "fd77::250/64")
    segment = make_segment("4c1f", 100, ("g1",)).model_copy(update={"router_addresses": routers})
    root = ET.fromstring(render_domain(segment, segment.guests[0], LXC, "abc", ENVIRONMENT))  # noqa: S314 - written by the agent
    found = [element.attrib for element in root.findall("devices/interface/route")]
    assert found == [{"family": "ipv4", "address": "0.0.0.0", "prefix": "0", "gateway": "10.0.0.250"}]  # noqa: S104


@pytest.mark.parametrize("image", [LXC, QEMU])
def test_a_guest_has_name_size_and_bridge(xml: MakeXml, image: LxcImage | QemuImage) -> None:
    domain = xml(image)
    texts = [domain.findtext("name"), domain.findtext("memory"), domain.findtext("vcpu")]
    interface = [attributes_of(domain, f"devices/interface/{tag}") for tag in ("mac", "source", "target")]
    assert texts == ["vc-4c1f-g1", "64", "1"]
    assert interface == [{"address": "02:00:00:00:00:01"}, {"bridge": "br100"}, {"dev": "vc100-eb10cffb"}]


def test_the_ownership_element_is_read_back(xml: MakeXml) -> None:
    ownership = xml(LXC).find(f"metadata/{{{NAMESPACE}}}guest")
    assert ownership is not None
    assert parse_ownership(ET.tostring(ownership, encoding="unicode")) == DomainOwnership("4c1f", "g1", "abc")


def test_the_number_of_resets_is_read_back(xml: MakeXml) -> None:
    ownership = xml(LXC, starts=2).find(f"metadata/{{{NAMESPACE}}}guest")
    assert ownership is not None
    assert parse_ownership(ET.tostring(ownership, encoding="unicode")).starts == 2


def test_equal_guests_differ_only_by_their_cluster(xml: MakeXml) -> None:
    first, second = xml(LXC), xml(LXC, cluster="77aa")
    assert (first.findtext("name"), second.findtext("name")) == ("vc-4c1f-g1", "vc-77aa-g1")
    assert attributes_of(first, "devices/interface/target") != attributes_of(second, "devices/interface/target")
    assert attributes_of(first, "devices/interface/mac") == attributes_of(second, "devices/interface/mac")


def test_a_container_has_its_own_root(xml: MakeXml) -> None:
    own, *writable = xml(LXC).findall("devices/filesystem")
    assert [attributes_of(own, tag) for tag in ("source", "target")] == [{"dir": "/guests/g1/root"}, {"dir": "/"}]
    targets = [(filesystem.get("type"), attributes_of(filesystem, "target")["dir"]) for filesystem in writable]
    assert targets == [("ram", "/run"), ("ram", "/tmp")]  # noqa: S108 - inside the guest


@pytest.mark.parametrize("kind", ["uid", "gid"])
def test_a_containers_ids_are_mapped_to_other_host_ids(xml: MakeXml, kind: str) -> None:
    assert attributes_of(xml(LXC), f"idmap/{kind}") == {"start": "0", "target": "268435456", "count": "65536"}


def test_a_containers_processors_are_a_quota(xml: MakeXml) -> None:
    assert [xml(LXC).findtext(f"cputune/{tag}") for tag in ("period", "quota")] == ["100000", "100000"]


def test_a_container_is_in_the_group_that_limits_it(xml: MakeXml) -> None:
    limited = xml(LXC, replace(ENVIRONMENT, group="/virtcloud.partition/g1.partition"))
    groups = [domain.findtext("resource/partition") for domain in (limited, xml(LXC))]
    assert groups == ["/virtcloud.partition/g1.partition", None]


@pytest.mark.parametrize("image", [LXC, QEMU])
def test_a_guests_bandwidth_is_limited_in_both_directions(
    make_segment: Callable[..., Segment], make_guest: MakeGuest, image: LxcImage | QemuImage
) -> None:
    guest = make_guest(limits={"bandwidth_mbit": 8})
    domain = ET.fromstring(render_domain(make_segment("a", 100), guest, image, "", ENVIRONMENT))  # noqa: S314 - written by the agent
    limits = [attributes_of(domain, f"devices/interface/bandwidth/{way}") for way in ("inbound", "outbound")]
    assert limits == [{"average": "1000"}, {"average": "1000"}]


def test_an_extra_disk_has_its_name_as_serial_number(
    make_segment: Callable[..., Segment], make_guest: MakeGuest
) -> None:
    guest = make_guest(disks=[{"name": "scratch", "size_mb": 64}])
    image = QEMU.model_copy(update={"disk": Path("/images/k/disk.img"), "disk_format": "raw"})
    domain = ET.fromstring(render_domain(make_segment("a", 100), guest, image, "", ENVIRONMENT))  # noqa: S314 - written by the agent
    _, extra = domain.findall("devices/disk")
    assert [attributes_of(extra, tag) for tag in ("source", "target")] == [
        {"file": "/guests/g1/disk-scratch.raw"},
        {"dev": "vdb", "bus": "virtio"},
    ]
    assert extra.findtext("serial") == "scratch"


@pytest.mark.parametrize(("xen", "policies"), [(False, ["report", "report"]), (True, [None, None])])
def test_qemu_reports_a_full_host_disk_to_the_guest(
    make_segment: Callable[..., Segment], make_guest: MakeGuest, xen: bool, policies: list[str | None]
) -> None:
    """By default, QEMU pauses the guest."""
    guest = make_guest(disks=[{"name": "scratch", "size_mb": 64}])
    image, environment = QEMU.model_copy(update={"disk": Path("/images/k/disk.img")}), replace(ENVIRONMENT, xen=xen)
    domain = ET.fromstring(render_domain(make_segment("a", 100), guest, image, "", environment))  # noqa: S314 - written by the agent
    assert [driver.get("error_policy") for driver in domain.findall("devices/disk/driver")] == policies


def test_an_extra_disk_of_a_container_is_a_folder(make_segment: Callable[..., Segment], make_guest: MakeGuest) -> None:
    guest = make_guest(disks=[{"name": "scratch", "size_mb": 64}])
    domain = ET.fromstring(render_domain(make_segment("a", 100), guest, LXC, "", ENVIRONMENT))  # noqa: S314 - written by the agent
    folder = domain.findall("devices/filesystem[@type='mount']")[-1]
    assert [attributes_of(folder, tag) for tag in ("source", "target")] == [
        {"dir": "/guests/g1/disks/scratch"},
        {"dir": "/mnt/scratch"},
    ]


def test_qemus_user_never_owns_a_shared_image(xml: MakeXml) -> None:
    image = QEMU.model_copy(update={"disk": Path("/images/k/disk.img")})
    path = "devices/disk/backingStore/source/seclabel"
    assert attributes_of(xml(image, replace(ENVIRONMENT, shared=True)), path) == {"model": "dac", "relabel": "no"}
    assert xml(image).find(path) is None, "expected relabelling, because QEMU could not read a private image without it"


def test_the_disk_of_an_image_names_no_other_file(xml: MakeXml) -> None:
    domain = xml(QEMU.model_copy(update={"disk": Path("/images/k/disk.img")}))
    (end,) = domain.findall("devices/disk/backingStore/backingStore")
    assert (list(end), end.attrib) == ([], {})


def test_a_containers_address_is_on_eth0(xml: MakeXml) -> None:
    domain = xml(LXC)
    assert attributes_of(domain, "devices/interface/ip") == {"address": "10.0.0.1", "family": "ipv4", "prefix": "24"}
    assert attributes_of(domain, "devices/interface/guest") == {"dev": "eth0"}


def test_a_container_starts_the_images_init(xml: MakeXml) -> None:
    assert [element.text for element in xml(LXC).findall("os/*")[:3]] == ["exe", "/sbin/init", "-v"]


def test_a_container_without_addresses_has_no_variable_without_value(
    make_segment: Callable[..., Segment], make_guest: MakeGuest
) -> None:
    guest = make_guest(addresses=[])
    domain = ET.fromstring(render_domain(make_segment("a", 100), guest, LXC, "", ENVIRONMENT))  # noqa: S314 - written by the agent
    assert {one.get("name"): one.text for one in domain.findall("os/initenv")} == {"VIRTCLOUD_GUEST": "g1"}


def test_an_ipv6_address_has_its_family(make_segment: Callable[..., Segment], make_guest: MakeGuest) -> None:
    segment = make_segment("a", 100)
    domain = ET.fromstring(render_domain(segment, make_guest(addresses=["fd00::1/64"]), LXC, "", ENVIRONMENT))  # noqa: S314 - written by the agent
    assert attributes_of(domain, "devices/interface/ip") == {"address": "fd00::1", "family": "ipv6", "prefix": "64"}


def test_a_qemu_guests_kernel_command_line_contains_its_address(xml: MakeXml) -> None:
    domain = xml(QEMU)
    assert (domain.findtext("os/kernel"), domain.findtext("os/initrd")) == ("/images/k/vmlinuz", "/images/k/initrd")
    assert domain.findtext("os/cmdline") == "console=ttyS0 virtcloud.guest=g1 virtcloud.address=10.0.0.1/24"


def test_a_qemu_guests_console_is_written_to_a_file(xml: MakeXml) -> None:
    assert attributes_of(xml(QEMU), "devices/serial/log") == {"file": "/guests/g1/console.log", "append": "on"}


def test_a_qemu_guests_disk_is_an_overlay(xml: MakeXml) -> None:
    domain = xml(QEMU.model_copy(update={"disk": Path("/images/k/disk.img"), "disk_format": "raw"}))
    disk = [attributes_of(domain, f"devices/disk/{tag}") for tag in ("driver", "source", "backingStore/format")]
    driver = {"name": "qemu", "type": "qcow2", "error_policy": "report"}
    assert disk == [driver, {"file": "/guests/g1/disk.qcow2"}, {"type": "raw"}]
    assert attributes_of(domain, "devices/disk/backingStore/source") == {"file": "/images/k/disk.img"}


@pytest.mark.parametrize(("accelerated", "kind"), [(True, "kvm"), (False, "qemu")])
def test_an_accelerated_guest_uses_kvm(xml: MakeXml, accelerated: bool, kind: str) -> None:
    assert xml(QEMU, DomainEnvironment("x86_64", Path("/x"), accelerated)).get("type") == kind


def test_only_the_settings_disable_the_security_driver(xml: MakeXml) -> None:
    confined, unconfined = (
        xml(LXC).find("seclabel"),
        xml(LXC, replace(ENVIRONMENT, confined=False)).find("seclabel"),
    )
    assert (confined, unconfined is not None and unconfined.attrib) == (None, {"type": "none"})
