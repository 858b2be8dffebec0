import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_machine import FakeHypervisor, FakeKernel, FakeUplinkRecords

from virtcloud.agent.guests import guest_files
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.domains import GuestDomain
from virtcloud.agent.guests.guest_files import LIMITED_START, WANTED_LIMIT
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import StopGuests
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment

Make = Callable[..., Segment]
MakeGuest = Callable[..., GuestWanted]


DISK = "kind: qemu\nkernel: vmlinuz\ndisk: disk.img\ndisk_format: raw\n"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for driver in ("lxc", "qemu"):
        (tmp_path / "libvirt" / driver).mkdir(parents=True)
    monkeypatch.setattr(guest_files, "LIBVIRT_LOGS", tmp_path / "libvirt")
    monkeypatch.setattr(guest_files, "LIBVIRT_LXC", tmp_path / "containers")
    return tmp_path / "libvirt"


@pytest.fixture
def qemu_guests(images: Path, hypervisor: FakeHypervisor, logs: Path) -> LocalGuests:
    (images / "cloud/image.yaml").write_text(DISK)
    (images / "cloud/disk.img").write_bytes(b"image" * 4096)
    settings = GuestSettings(images, images / "state", "x86_64", stop_grace_s=0)
    return LocalGuests({Hypervisor.QEMU: hypervisor}, settings, lambda _: None)


def with_disk_image(segment: Segment) -> tuple[Segment, GuestWanted]:
    return segment, segment.guests[0].model_copy(update={"image": "cloud"})


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_guests_disk_writes_do_not_change_the_image(
    qemu_guests: LocalGuests, images: Path, make_segment: Make
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    overlay = images / "state/vc-a-g1/disk.qcow2"
    write_and_read = ["qemu-io", "-f", "qcow2", "-c", "write -P 7 0 512", "-c", "read -P 7 0 512", str(overlay)]
    result = subprocess.run(write_and_read, capture_output=True, text=True, check=True)  # noqa: S603
    assert "Pattern verification failed" not in result.stdout
    assert (images / "cloud/disk.img").read_bytes() == b"image" * 4096


def test_a_guest_starts_despite_an_incomplete_disk(
    qemu_guests: LocalGuests, images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    (images / "state/vc-a-g1").mkdir(parents=True)
    (images / "state/vc-a-g1/disk.qcow2").write_bytes(b"half")
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    assert (images / "state/vc-a-g1/disk.qcow2").read_bytes()[:4] == b"QFI\xfb"
    assert list(hypervisor.by_name) == ["vc-a-g1"]


def test_a_disk_in_another_format_is_refused(qemu_guests: LocalGuests, images: Path, make_segment: Make) -> None:
    (images / "cloud/image.yaml").write_text(DISK.replace("raw", "qcow2"))
    with pytest.raises(Refused, match=r"its disk .*disk.img: expected a file in format qcow2, got .* raw"):
        qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))


def test_a_machine_has_no_limit_of_a_former_container(
    qemu_guests: LocalGuests, images: Path, make_segment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The image of a guest may change from a container to a virtual machine."""
    (images / "state/vc-a-g1").mkdir(parents=True)
    for name in (WANTED_LIMIT, LIMITED_START):
        (images / "state/vc-a-g1" / name).write_text("100")
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    qemu_guests.read()
    assert list_files(images / "state") == ["vc-a-g1/disk.json", "vc-a-g1/disk.qcow2"]
    assert "limit_not_set" not in caplog.text


def test_a_removed_guest_leaves_no_runtime_files_of_libvirt(
    qemu_guests: LocalGuests, images: Path, logs: Path, make_segment: Make
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    containers = logs.parent / "containers"
    for domain in ("vc-a-g1", "vc-a-g10"):
        for suffix in ("dev", "devpts", "fuse"):
            (containers / f"{domain}.{suffix}").mkdir(parents=True)
    (containers / "vc-a-g1.sock").touch()
    qemu_guests.ensure_no_guests("a", ("g1",))
    assert not list((images / "state").iterdir())
    assert sorted(path.name for path in containers.iterdir()) == ["vc-a-g10.dev", "vc-a-g10.devpts", "vc-a-g10.fuse"]


def test_a_stopped_guest_leaves_no_disk_or_log(
    qemu_guests: LocalGuests, images: Path, logs: Path, make_segment: Make
) -> None:
    for segment in (make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))):
        qemu_guests.ensure_guest(*with_disk_image(segment))
    for path in (logs / "qemu/vc-a-g1.log", logs / "qemu/vc-a-g1.log.0", logs / "lxc/vc-a-g1.log.2.gz"):
        path.touch()
    for name in ("console.log", "console.log.0", "console.log.1"):
        (images / "state/vc-a-g1" / name).touch()
    (logs / "qemu/vc-b-g1.log").touch()
    (logs / "qemu/vc-a-g10.log").touch()
    qemu_guests.ensure_no_guests("a", ("g1",))
    qemu_guests.ensure_no_guests("a", ("g1",))
    assert (list_files(images / "state"), list_files(logs)) == (
        ["vc-b-g1/disk.json", "vc-b-g1/disk.qcow2"],
        ["qemu/vc-a-g10.log", "qemu/vc-b-g1.log"],
    )


def test_stopping_a_guest_that_has_ended_removes_its_files(
    qemu_guests: LocalGuests, images: Path, logs: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """A guest can end by itself between the reading of the host and the step that stops the guest."""
    segment = make_segment("a", 100, ("g1", "g2", "g3"))
    for guest in segment.guests:
        qemu_guests.ensure_guest(segment, guest.model_copy(update={"image": "cloud"}))
    (logs / "qemu/vc-a-g1.log").touch()
    hypervisor.by_name.clear()
    qemu_guests.ensure_no_guests("a", ("g1", "g2"), kept=("g2",))
    assert {path.name for path in (images / "state").iterdir()} == {"vc-a-g2", "vc-a-g3"}
    assert list_files(logs) == []


def test_stopping_guests_keeps_the_files_of_a_foreign_domain(
    qemu_guests: LocalGuests, logs: Path, hypervisor: FakeHypervisor
) -> None:
    hypervisor.by_name["vc-a-g1"] = GuestDomain("vc-a-g1", running=True)
    (logs / "qemu/vc-a-g1.log").touch()
    qemu_guests.ensure_no_guests("a", ("g1",))
    assert list_files(logs) == ["qemu/vc-a-g1.log"]


def test_removing_a_cluster_removes_files_of_ended_guests(
    qemu_guests: LocalGuests, images: Path, logs: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a" * 32, 100, ("g" * 32,))))
    (logs / f"qemu/{names.domain_name('a' * 32, 'g' * 32)}.log").touch()
    hypervisor.by_name.clear()
    qemu_guests.ensure_no_files("a" * 32)
    qemu_guests.ensure_no_files("a" * 32)
    assert (list_files(images / "state"), list_files(logs)) == ([], [])


def test_a_restarted_guest_starts_with_its_former_disk(
    qemu_guests: LocalGuests, images: Path, make_segment: Make
) -> None:
    segment, guest = with_disk_image(make_segment("a", 100, ("g1",)))
    qemu_guests.ensure_guest(segment, guest)
    inode = (images / "state/vc-a-g1/disk.qcow2").stat().st_ino
    qemu_guests.ensure_no_guests("a", ("g1",), ("g1",))
    qemu_guests.ensure_guest(segment, guest)
    qemu_guests.ensure_guest(segment, guest.model_copy(update={"starts": 1}))
    assert (images / "state/vc-a-g1/disk.qcow2").stat().st_ino == inode


def test_a_killed_agent_finishes_a_reset_once(
    qemu_guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    segment, guest = with_disk_image(make_segment("a", 100, ("g1",)))
    qemu_guests.ensure_guest(segment, guest)
    qemu_guests.ensure_no_guests("a", ("g1",), ("g1",))
    for _ in range(2):
        qemu_guests.ensure_guest(segment, guest.model_copy(update={"starts": 1}))
    assert len(hypervisor.started) == 2


def test_files_of_wanted_guests_without_domain_remain(
    qemu_guests: LocalGuests, images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """A stopped guest has no domain. After a reboot of the host, no guest has a domain."""
    segments = tuple(make_segment(name, 100, ("g1",)) for name in ("a", "b"))
    for segment in segments:
        qemu_guests.ensure_guest(*with_disk_image(segment))
    hypervisor.by_name.clear()
    assert qemu_guests.remove_orphaned_files(HostWanted(segments=segments[:1]))
    assert list_files(images / "state") == ["vc-a-g1/disk.json", "vc-a-g1/disk.qcow2"]


def test_orphaned_guest_files_are_removed_at_the_start(
    qemu_guests: LocalGuests, images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    for segment in (make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))):
        qemu_guests.ensure_guest(*with_disk_image(segment))
    hypervisor.by_name.pop("vc-a-g1")
    assert qemu_guests.remove_orphaned_files(HostWanted())
    assert list_files(images / "state") == ["vc-b-g1/disk.json", "vc-b-g1/disk.qcow2"]


def test_orphaned_files_remain_while_a_hypervisor_is_unreachable(
    qemu_guests: LocalGuests, images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    hypervisor.error = Unreachable("no answer")
    assert not qemu_guests.remove_orphaned_files(HostWanted())
    assert list_files(images / "state") == ["vc-a-g1/disk.json", "vc-a-g1/disk.qcow2"]


def test_logs_of_foreign_domains_are_not_removed(qemu_guests: LocalGuests, logs: Path) -> None:
    (logs / "qemu/vc-database.log").touch()
    assert qemu_guests.remove_orphaned_files(HostWanted())
    assert list_files(logs) == ["qemu/vc-database.log"]


def test_all_guests_end_despite_unremovable_files(
    qemu_guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = make_segment("a", 100, ("g1", "g2"))
    for guest in segment.guests:
        qemu_guests.ensure_guest(segment, guest.model_copy(update={"image": "cloud"}))

    def raise_read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "disk.qcow2")

    monkeypatch.setattr(shutil, "rmtree", raise_read_only)
    with pytest.raises(Refused, match="cannot remove the files of the guest vc-a-g1: Read-only file system"):
        qemu_guests.ensure_no_guests("a", ("g1", "g2"))
    assert hypervisor.by_name == {}


def test_unremovable_files_do_not_prevent_removal_of_other_guests_files(
    qemu_guests: LocalGuests,
    images: Path,
    hypervisor: FakeHypervisor,
    make_segment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for segment in (make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))):
        qemu_guests.ensure_guest(*with_disk_image(segment))
    hypervisor.by_name.clear()
    remove, busy = shutil.rmtree, list[Path]()

    def remove_others(path: Path) -> None:
        if not busy:
            busy.append(path)
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", remove_others)
    with pytest.raises(Refused, match="cannot remove the files of the guest"):
        qemu_guests.remove_orphaned_files(HostWanted())
    assert list((images / "state").iterdir()) == busy


def test_a_host_is_read_despite_unremovable_orphaned_files(
    qemu_guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    hypervisor.by_name.clear()

    def raise_read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "disk.qcow2")

    monkeypatch.setattr(shutil, "rmtree", raise_read_only)
    host = LocalHost(SegmentInterfaces(FakeKernel(), FakeUplinkRecords()), qemu_guests)
    host.remove_orphaned_files(HostWanted())
    assert host.read() == ObservedHost()


def test_the_removal_of_each_guests_files_is_progress(images: Path, logs: Path, hypervisor: FakeHypervisor) -> None:
    settings, progress = GuestSettings(images, images / "state", "x86_64"), list[str]()
    guests = LocalGuests(
        {Hypervisor.QEMU: hypervisor}, settings, lambda _: None, progress=lambda: progress.append("made")
    )
    for name in ("vc-a-g1", "vc-a-g2"):
        (images / "state" / name).mkdir(parents=True)
        (logs / f"qemu/{name}.log").touch()
    guests.remove_orphaned_files(HostWanted())
    assert progress == ["made", "made"]


def test_an_unexpected_error_in_the_removal_is_logged(
    qemu_guests: LocalGuests, images: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("unexpected")

    (images / "state/vc-a-g1").mkdir(parents=True)
    host = LocalHost(SegmentInterfaces(FakeKernel(), FakeUplinkRecords()), qemu_guests)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        host.remove_orphaned_files(HostWanted())
    assert "orphaned_files_not_removed" in caplog.text
    assert "ValueError: unexpected" in caplog.text
    host.remove_orphaned_files(HostWanted())
    assert list((images / "state").iterdir()) == []


def test_files_that_remain_after_an_error_are_removed_later(
    qemu_guests: LocalGuests, images: Path, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    host = LocalHost(SegmentInterfaces(FakeKernel(), FakeUplinkRecords()), qemu_guests)
    host.remove_orphaned_files(HostWanted())

    def raise_busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", "disk.qcow2")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", raise_busy)
        with pytest.raises(Refused, match="busy"):
            host.apply(StopGuests("a", ("g1",)))
    host.remove_orphaned_files(HostWanted())
    assert list_files(images / "state") == []


def test_files_are_removed_after_the_end_of_a_foreign_domain(
    qemu_guests: LocalGuests, images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """While another program has a domain with the guest's name, the files may belong to this domain."""
    qemu_guests.ensure_guest(*with_disk_image(make_segment("a", 100, ("g1",))))
    hypervisor.by_name["vc-a-g1"] = GuestDomain("vc-a-g1", running=True)
    host = LocalHost(SegmentInterfaces(FakeKernel(), FakeUplinkRecords()), qemu_guests)
    host.remove_orphaned_files(HostWanted())
    assert list_files(images / "state") == ["vc-a-g1/disk.json", "vc-a-g1/disk.qcow2"]
    hypervisor.by_name.clear()
    host.remove_orphaned_files(HostWanted())
    assert list_files(images / "state") == []
