from collections.abc import Callable
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import pytest
from support.fake_machine import FakeGroups, FakeHypervisor, FakeRoots
from support.hosts.seed_documents import seeded_guest, seeded_segment

from virtcloud.agent.difference import digest
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.network import names
from virtcloud.agent.steps import StartGuest, WritePeerFiles
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]


MakeGuest = Callable[..., GuestWanted]


def test_former_processes_end_before_the_root_is_mounted(
    images: Path, hypervisor: FakeHypervisor, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    groups, roots = FakeGroups(), FakeRoots(images / "logs")
    ensure_root = roots.ensure
    monkeypatch.setattr(groups, "ensure", lambda *_: calls.append("kill"))
    monkeypatch.setattr(roots, "ensure", lambda *arguments: calls.append("mount") or ensure_root(*arguments))
    settings = GuestSettings(images, images / "logs", "x86_64")
    guests = LocalGuests({Hypervisor.LXC: hypervisor}, settings, lambda _: None, roots, groups=groups)
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    assert calls == ["kill", "mount"]


def test_a_missing_image_is_named_with_the_known_images(
    guests: LocalGuests, make_segment: Make, make_guest: MakeGuest
) -> None:
    expected = r"image debian: .*images on this host: busybox, cloud; images of the catalogue: virtcloud image list"
    with pytest.raises(Refused, match=expected):
        guests.ensure_guest(make_segment("a", 100), make_guest(image="debian"))


def test_a_missing_hypervisor_is_named_with_the_setting(
    guests: LocalGuests, make_segment: Make, make_guest: MakeGuest
) -> None:
    with pytest.raises(Refused, match='add qemu = "qemu:///system" under'):
        guests.ensure_guest(make_segment("a", 100), make_guest(image="cloud"))


@pytest.mark.parametrize(
    ("accelerator", "listed", "kind"),
    [("auto", True, "kvm"), ("auto", False, "qemu"), ("tcg", True, "qemu"), ("kvm", False, "kvm")],
)
def test_kvm_is_used_if_available_unless_the_settings_decide_otherwise(
    images: Path, make_segment: Make, *, accelerator: Literal["auto", "kvm", "tcg"], listed: bool, kind: str
) -> None:
    hypervisor = FakeHypervisor()
    hypervisor.kvm = listed
    settings = GuestSettings(images, images, "x86_64", accelerator)
    segment = make_segment("a", 100, ("g1",))
    wanted = segment.guests[0].model_copy(update={"image": "cloud"})
    LocalGuests({Hypervisor.QEMU: hypervisor}, settings, lambda _: None).ensure_guest(segment, wanted)
    assert hypervisor.started[0].startswith(f'<domain type="{kind}">')


def test_a_seed_is_the_last_disk_until_the_guest_stops(images: Path, hypervisor: FakeHypervisor) -> None:
    settings = GuestSettings(images, images / "logs", "x86_64", stop_grace_s=0)
    guests = LocalGuests({Hypervisor.QEMU: hypervisor}, settings, lambda _: None, FakeRoots(images / "logs"))
    segment = seeded_segment(seeded_guest(image="cloud"))
    guests.ensure_guest(segment, segment.guests[0])
    seed = images / "logs" / names.domain_name("c1", "n1") / "seed.iso"
    disk = ET.fromstring(hypervisor.started[-1]).findall("devices/disk")[-1]  # noqa: S314 - written by the agent
    assert (disk.find("source").get("file"), disk.find("readonly") is not None) == (str(seed), True)
    assert b"-----BEGIN OPENSSH PRIVATE KEY-----" in seed.read_bytes()
    guests.ensure_no_guests("c1", ("n1",))
    assert not seed.exists()


def test_no_log_or_error_shows_a_private_key(images: Path, hypervisor: FakeHypervisor) -> None:
    guest = seeded_guest()
    segment = seeded_segment(guest)
    steps = (StartGuest(segment, guest), WritePeerFiles(segment, guest))
    texts = [f"{step} {step!r} {guest.model_dump_json()} {digest(segment, guest)}" for step in steps]
    assert not any("PRIVATE KEY" in text for text in texts)
