from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from fake_machine import FakeHypervisor

from virtcloud.agent import names
from virtcloud.agent.carried import CarriedGuest
from virtcloud.agent.difference import digest
from virtcloud.agent.guests import Guests, GuestSettings
from virtcloud.agent.ports import Domain
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]
MakeGuest = Callable[..., GuestWanted]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "busybox/rootfs").mkdir(parents=True)
    (tmp_path / "busybox/image.yaml").write_text("kind: lxc\n")
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud/vmlinuz").touch()
    (tmp_path / "cloud/image.yaml").write_text("kind: qemu\nkernel: vmlinuz\n")
    return tmp_path


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def guests(images: Path, hypervisor: FakeHypervisor, pauses: list[float]) -> Guests:
    settings = GuestSettings(images, images / "logs", "x86_64", stop_grace_s=0.3)
    return Guests({Hypervisor.LXC: hypervisor}, settings, pauses.append)


def test_a_guest_is_started_and_read_back(guests: Guests, segment: Make) -> None:
    one = segment("a", 100, ("g1",))
    guests.ensure_guest(one, one.guests[0])
    assert guests.read()[0] == (CarriedGuest("a", "g1", digest(one, one.guests[0])),)


def test_a_guest_that_runs_is_not_started_again(guests: Guests, hypervisor: FakeHypervisor, segment: Make) -> None:
    one = segment("a", 100, ("g1",))
    guests.ensure_guest(one, one.guests[0])
    guests.ensure_guest(one, one.guests[0])
    assert len(hypervisor.started) == 1


def test_a_guest_made_from_another_document_is_replaced(
    guests: Guests, hypervisor: FakeHypervisor, segment: Make, guest: MakeGuest
) -> None:
    one = segment("a", 100, ("g1",))
    guests.ensure_guest(one, one.guests[0])
    guests.ensure_guest(one, guest(memory_mb=128))
    assert (len(hypervisor.started), len(hypervisor.by_name)) == (2, 1)


def test_two_clusters_run_the_same_guest_side_by_side(guests: Guests, segment: Make) -> None:
    for one in (segment("a", 100, ("g1",)), segment("b", 101, ("g1",))):
        guests.ensure_guest(one, one.guests[0])
    assert [(one.cluster, one.guest) for one in guests.read()[0]] == [("a", "g1"), ("b", "g1")]


def test_stopping_one_clusters_guests_leaves_the_others(guests: Guests, segment: Make) -> None:
    for one in (segment("a", 100, ("g1",)), segment("b", 101, ("g1",))):
        guests.ensure_guest(one, one.guests[0])
    guests.ensure_no_guests("a", ("g1",))
    assert [(one.cluster, one.guest) for one in guests.read()[0]] == [("b", "g1")]


def test_a_guest_that_ends_when_asked_is_not_waited_for(guests: Guests, segment: Make, pauses: list[float]) -> None:
    one = segment("a", 100, ("g1",))
    guests.ensure_guest(one, one.guests[0])
    guests.ensure_no_guests("a", ("g1",))
    assert pauses == []


def test_a_guest_that_does_not_listen_is_ended_after_its_grace(
    guests: Guests, hypervisor: FakeHypervisor, segment: Make, pauses: list[float]
) -> None:
    one = segment("a", 100, ("g1",))
    guests.ensure_guest(one, one.guests[0])
    hypervisor.stubborn.add("vc-a-g1")
    guests.ensure_no_guests("a", ("g1",))
    assert (len(pauses), hypervisor.destroyed) == (3, ["vc-a-g1"])


def test_stopping_what_does_not_run_is_success(guests: Guests) -> None:
    guests.ensure_no_guests("a", ("g1", "g2"))


def test_a_foreign_domain_of_that_name_is_left_alone(guests: Guests, hypervisor: FakeHypervisor, segment: Make) -> None:
    hypervisor.by_name["vc-a-g1"] = Domain("vc-a-g1", running=True)
    one = segment("a", 100, ("g1",))
    with pytest.raises(Unsafe, match="domain vc-a-g1 was not made by virtcloud"):
        guests.ensure_guest(one, one.guests[0])
    assert (hypervisor.started, list(hypervisor.by_name)) == ([], ["vc-a-g1"])


def test_foreign_domains_are_not_read(guests: Guests, hypervisor: FakeHypervisor) -> None:
    hypervisor.by_name["database"] = Domain("database", running=True)
    assert guests.read()[0] == ()


def test_an_image_that_is_not_there_is_named_with_those_that_are(
    guests: Guests, segment: Make, guest: MakeGuest
) -> None:
    with pytest.raises(Refused, match=r"image debian: .*this machine has: busybox, cloud"):
        guests.ensure_guest(segment("a", 100), guest(image="debian"))


def test_an_image_for_a_hypervisor_that_this_machine_lacks_says_what_to_add(
    guests: Guests, segment: Make, guest: MakeGuest
) -> None:
    with pytest.raises(Refused, match='add qemu = "qemu:///system" under'):
        guests.ensure_guest(segment("a", 100), guest(image="cloud"))


@pytest.mark.parametrize(
    ("accelerator", "listed", "kind"),
    [("auto", True, "kvm"), ("auto", False, "qemu"), ("tcg", True, "qemu"), ("kvm", False, "kvm")],
)
def test_kvm_is_used_when_listed_unless_the_settings_say_otherwise(
    images: Path, segment: Make, *, accelerator: Literal["auto", "kvm", "tcg"], listed: bool, kind: str
) -> None:
    hypervisor = FakeHypervisor()
    hypervisor.kvm = listed
    settings = GuestSettings(images, images, "x86_64", accelerator)
    one = segment("a", 100, ("g1",))
    wanted = one.guests[0].model_copy(update={"image": "cloud"})
    Guests({Hypervisor.QEMU: hypervisor}, settings, lambda _: None).ensure_guest(one, wanted)
    assert hypervisor.started[0].startswith(f'<domain type="{kind}">')


def test_a_clusters_console_logs_go_with_it_and_no_other_ones(guests: Guests, images: Path) -> None:
    logs = images / "logs"
    logs.mkdir()
    long = "g" * 32
    gone = [names.domain("a" * 32, guest) for guest in ("g1", long)]
    kept = names.domain("b" * 32, "g1")
    for name in (*gone, kept):
        (logs / f"{name}.log").touch()
    guests.ensure_no_logs("a" * 32)
    guests.ensure_no_logs("a" * 32)
    assert [path.stem for path in logs.iterdir()] == [kept]
