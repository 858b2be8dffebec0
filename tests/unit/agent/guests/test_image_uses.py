"""Tests of the records of the images that guests use, while a guest gets another image."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_machine import FakeHypervisor
from support.hosts.image_host import QCOW2, Host

from virtcloud.agent.guests import domain_preparation
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.image_folder import end_former_uses
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.image import ImageSource
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]
DOMAIN = "vc-a-g1"


class ImageUser:
    """A guest whose image changes, on a host whose cache has room for two images."""

    def __init__(self, host: Host, segment: Segment) -> None:
        host.size = 8000
        host.restarted()
        self.host, self.segment = host, segment
        self.containers, self.machines = FakeHypervisor(), FakeHypervisor()
        self.guests = LocalGuests(
            {Hypervisor.LXC: self.containers, Hypervisor.QEMU: self.machines},
            GuestSettings(host.path, host.path / "guests", "x86_64", stop_grace_s=0),
            lambda _: None,
            cache=host.cache,
        )
        self.former = self.start("former")

    def start(self, image: str) -> ImageSource:
        source = self.fetch(image)
        changes = {"image": "disk", "image_source": source}
        self.guests.ensure_guest(self.segment, self.segment.guests[0].model_copy(update=changes))
        return source

    def fetch(self, image: str) -> ImageSource:
        self.host.server.data = QCOW2 + image.encode()
        self.host.get(source := self.host.source(), "unused")
        shutil.rmtree(self.host.path / "guests/unused")
        return source

    def has_former(self) -> bool:
        return (self.host.path / "images" / self.former.sha256).exists()


@pytest.fixture
def user(host: Host, make_segment: Make, monkeypatch: pytest.MonkeyPatch) -> ImageUser:
    monkeypatch.setattr(domain_preparation, "ensure_disks", lambda *_: None)
    return ImageUser(host, make_segment("a", 100, ("g1",)))


def test_a_former_image_stays_if_its_guest_cannot_be_stopped(user: ImageUser) -> None:
    user.machines.immortal = user.machines.stubborn = {DOMAIN}
    with pytest.raises(Refused, match="Device or resource busy"):
        user.start("next")
    with pytest.raises(Refused, match="images in use"):
        user.fetch("third")
    assert user.has_former()


def test_a_former_image_stays_while_its_hypervisor_hangs(user: ImageUser, monkeypatch: pytest.MonkeyPatch) -> None:
    user.containers.by_name[DOMAIN] = user.machines.by_name.pop(DOMAIN)
    user.containers.error = Unreachable("libvirt (lxc) did not answer")

    def refuse(_xml: str) -> None:
        raise Refused("cannot create the interface")

    monkeypatch.setattr(user.machines, "start", refuse)
    with pytest.raises(Refused, match="cannot create the interface"):
        user.start("next")
    with pytest.raises(Refused, match="images in use"):
        user.fetch("third")
    assert user.has_former()


@pytest.mark.parametrize("error", [None, Unreachable("libvirt (lxc) did not answer")])
def test_a_former_image_is_unused_after_the_next_start(user: ImageUser, error: Exception | None) -> None:
    user.machines.by_name.clear()  # the guest ended by itself
    user.containers.error = error
    user.start("next")
    user.fetch("third")
    assert not user.has_former()


def test_the_record_of_a_former_use_is_removed(host: Host, tmp_path: Path) -> None:
    record, former = tmp_path / "guests/g1/image.sha256", host.source()
    host.get(former)
    host.server.data = QCOW2 + b"next"
    host.get(following := host.source())
    assert record.read_text().split() == [following.sha256, former.sha256]
    end_former_uses(following, record.parent)
    assert record.read_text() == following.sha256
