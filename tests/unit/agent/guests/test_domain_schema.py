"""Tests that libvirt's schema accepts the XML of every kind of guest.

No test runs a guest on Xen, so the XML of guests on Xen is tested only here.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from support.hosts.seed_documents import SEED

from virtcloud.agent.guests.domain_xml import render_domain
from virtcloud.agent.guests.domains import DomainEnvironment
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.model.wanted import GuestWanted, Segment

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
CONTAINER = LxcImage(kind="lxc", rootfs=Path("/images/c/rootfs"), arguments=("-v",))
KERNEL = QemuImage(kind="qemu", kernel=Path("/images/k/vmlinuz"), initrd=Path("/images/k/initrd"))
DISK = QemuImage(kind="qemu", disk=Path("/images/d/disk.qcow2"))
BOTH = DISK.model_copy(update={"kernel": Path("/images/k/vmlinuz"), "disk_format": "raw"})
PLAIN = DomainEnvironment("x86_64", Path("/guests/g1"), root=GuestRoot(Path("/guests/g1/root"), 1 << 28))
LIMITED = replace(PLAIN, group="/virtcloud.partition/vc-1.partition", shared=True)
SEEDED: dict[str, Any] = {"seed": SEED}
LIMITS: dict[str, Any] = {"limits": {"bandwidth_mbit": 100, "disk_mb": 64, "pids": 100}}
DISKS: dict[str, Any] = {"disks": [{"name": "data", "size_mb": 64}, {"name": "swap", "size_mb": 64}]}


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    if not SCHEMA.exists():
        pytest.skip(f"NOT TESTED: {SCHEMA} is missing; apt-get install libvirt-daemon")
    return etree.RelaxNG(etree.parse(SCHEMA))


@pytest.fixture
def render(make_segment: Callable[..., Segment], make_guest: Callable[..., GuestWanted]) -> Callable[..., Any]:
    def make(image: GuestImage, environment: DomainEnvironment, changes: dict[str, Any]) -> etree._Element:
        guest = make_guest("g1", addresses=["10.0.0.1/24", "fd00::1/64"], **changes)
        segment = make_segment("4c1f", 100).model_copy(update={"guests": (guest,), "mtu": 1450})
        return etree.fromstring(render_domain(segment, guest, image, "abc", environment))

    return make


@pytest.mark.parametrize("changes", [{}, SEEDED | LIMITS], ids=["plain", "seed and limits"])
@pytest.mark.parametrize("environment", [PLAIN, LIMITED], ids=["plain", "in a group"])
def test_libvirt_accepts_the_xml_of_containers(
    schema: etree.RelaxNG, render: Callable[..., Any], environment: DomainEnvironment, changes: dict[str, Any]
) -> None:
    schema.assertValid(render(CONTAINER, environment, changes))


@pytest.mark.parametrize("changes", [{}, SEEDED | LIMITS | DISKS], ids=["plain", "seed, limits, disks"])
@pytest.mark.parametrize("image", [KERNEL, DISK, BOTH], ids=["kernel", "disk", "kernel and disk"])
@pytest.mark.parametrize(
    "environment",
    [PLAIN, replace(PLAIN, confined=False), replace(LIMITED, accelerated=True), replace(LIMITED, xen=True)],
    ids=["tcg", "unconfined", "kvm", "xen"],
)
def test_libvirt_accepts_the_xml_of_virtual_machines(
    schema: etree.RelaxNG,
    render: Callable[..., Any],
    environment: DomainEnvironment,
    image: GuestImage,
    changes: dict[str, Any],
) -> None:
    schema.assertValid(render(image, environment, changes))


def test_the_schema_rejects_an_unknown_device(schema: etree.RelaxNG, render: Callable[..., Any]) -> None:
    """The bus of a disk is misspelt. The other tests rely on the schema to detect such errors."""
    domain = render(DISK, PLAIN, {})
    domain.find("devices/disk/target").set("bus", "vertio")
    assert not schema.validate(domain)


@pytest.mark.parametrize(
    ("image", "system", "machine", "disks"),
    [
        (BOTH, "linux", "xenpv", ["xvda/xen", "xvdb/xen", "xvdc/xen", "xvdz/xen"]),
        (DISK, "hvm", "xenfv", ["hda/ide", "xvdb/xen", "xvdc/xen", "xvdz/xen"]),
    ],
    ids=["paravirtualized", "like a PC"],
)
def test_the_images_kernel_decides_the_kind_of_a_xen_machine(
    render: Callable[..., Any], image: GuestImage, system: str, machine: str, disks: list[str]
) -> None:
    domain = render(image, replace(PLAIN, xen=True), SEEDED | DISKS)
    kind, targets = domain.find("os/type"), domain.findall("devices/disk/target")
    assert (domain.get("type"), kind.text, kind.get("machine")) == ("xen", system, machine)
    assert [f"{target.get('dev')}/{target.get('bus')}" for target in targets] == disks
    assert domain.find("devices/interface/model").get("type") == "netfront"
    assert domain.find("devices/rng") is None
    assert domain.find("devices//log") is None
