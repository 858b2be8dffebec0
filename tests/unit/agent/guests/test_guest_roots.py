"""Tests of the roots of containers, with the kernel's real mounts."""

import errno
import os
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.guests import guest_roots, mounts, shifted_owners
from virtcloud.agent.guests.guest_roots import GuestRoots
from virtcloud.agent.guests.shifted_owners import CAPABILITIES, shift_owners
from virtcloud.model.errors import Refused

SHIFT = 0x10000000
RAW_SOCKETS = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)  # capabilities(7), version 2: cap_net_raw, effective


@pytest.fixture(params=["mount", "files"])
def shifted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test once for each way in which the agent shifts the owners of an image's files.

    "mount": by an idmapped mount. "files": by a change of each file's owner, for a kernel or file system without
    idmapped mounts.
    """

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    if request.param == "files":
        monkeypatch.setattr(mounts, "mounted_with_shifted_owners", refuse)
    return str(request.param)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    (root / "bin").mkdir(parents=True)
    for name in ("sudo", "ping", "own"):
        (root / "bin" / name).write_text(name)
    (root / "bin/sudo").chmod(0o4755)
    (root / "bin/ping").chmod(0o755)
    os.setxattr(root / "bin/ping", CAPABILITIES, RAW_SOCKETS)
    os.chown(root / "bin/own", 7, 8)
    (root / "bin/sh").symlink_to("/etc/passwd")
    return root


@pytest.fixture
def roots(tmp_path: Path) -> GuestRoots:
    for name in ("g1", "g2"):
        (tmp_path / "guests" / name).mkdir(parents=True)
    return GuestRoots(tmp_path / "guests")


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def run_as(uid: int, *argv: str) -> int:
    user = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return subprocess.run(["setpriv", *user, *argv], check=False).returncode  # noqa: S603, S607 - the test's commands


def test_the_reason_for_a_missing_user_namespace_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A possible reason: the host limits the number of user namespaces (user.max_user_namespaces)."""
    program = tmp_path / "unshare"
    program.write_text("#!/bin/sh\necho 'unshare failed: No space left on device' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(OSError, match="No space left on device"), mounts.user_namespace(SHIFT, 1):
        pass


def test_owners_are_shifted_into_the_guests_range(
    roots: GuestRoots, image: Path, shifted: str, with_mounts: Run
) -> None:
    def check() -> None:
        root = roots.ensure("g1", image)
        assert root.id_shift == SHIFT
        assert f'"shifted":"{shifted}"' in (root.folder.parent / "root.json").read_text()
        owners = {
            path.name: (path.lstat().st_uid - SHIFT, path.lstat().st_gid - SHIFT)
            for path in (root.folder, *root.folder.rglob("*"))
        }
        assert owners == dict.fromkeys(("root", "bin", "sudo", "ping", "sh"), (0, 0)) | {"own": (7, 8)}
        assert stat.S_IMODE((root.folder / "bin/sudo").stat().st_mode) == 0o4755
        capabilities = struct.unpack("<6I", os.getxattr(root.folder / "bin/ping", CAPABILITIES))
        assert (capabilities[0] >> 24, capabilities[1], capabilities[5]) == (3, 1 << 13, SHIFT)
        roots.ensure_none("g1")

    with_mounts(check)


def test_two_guests_have_different_ids(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    def check() -> None:
        assert [roots.ensure(name, image).id_shift for name in ("g1", "g2", "g1")] == [SHIFT, SHIFT + 65536, SHIFT]

    with_mounts(check)


def test_a_file_system_without_idmapped_mounts_is_tried_once(
    roots: GuestRoots, image: Path, with_mounts: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(source: Path, *_: object) -> None:
        tried.append(source)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mounts, "mounted_with_shifted_owners", refuse)

    def work() -> None:
        for guest in ("g1", "g2"):
            roots.ensure(guest, image)
        assert tried == [image]

    with_mounts(work)


def test_a_guest_changes_neither_image_nor_other_guests(
    roots: GuestRoots, image: Path, shifted: str, with_mounts: Run
) -> None:
    def check() -> None:
        first, second = (roots.ensure(name, image).folder for name in ("g1", "g2"))
        (first / "bin/own").write_text("changed")
        (first / "bin/ping").unlink()
        assert ((second / "bin/own").read_text(), (image / "bin/own").read_text()) == ("own", "own")
        assert (image / "bin/ping").exists()
        assert (image / "bin/own").stat().st_uid == 7

    assert shifted
    with_mounts(check)


def test_a_root_is_kept_after_a_reboot(roots: GuestRoots, image: Path, shifted: str, with_mounts: Run) -> None:
    def check() -> None:
        folder = roots.ensure("g1", image).folder
        (folder / "kept").write_text("by the guest")
        mounts.unmount_below(folder.parent)
        assert roots.find("g1") is None
        roots.ensure("g1", image)
        assert roots.find("g1") == roots.ensure("g1", image)
        assert ((folder / "kept").read_text(), (folder / "bin/own").stat().st_uid) == ("by the guest", SHIFT + 7)

    assert shifted
    with_mounts(check)


def test_a_changed_image_replaces_the_root(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    def check() -> None:
        (roots.ensure("g1", image).folder / "kept").touch()
        (image / "new").touch()
        assert {path.name for path in roots.ensure("g1", image).folder.iterdir()} == {"bin", "new"}

    with_mounts(check)


def test_a_moved_state_folder_keeps_the_root(tmp_path: Path, image: Path, with_mounts: Run) -> None:
    former, larger = tmp_path / "state", tmp_path / "larger"
    root = Path("images", "5e" * 32, "rootfs")
    (former / root).parent.mkdir(parents=True)
    image.rename(former / root)
    (former / "guests/g1").mkdir(parents=True)

    def check() -> None:
        folder = GuestRoots(former / "guests").ensure("g1", former / root).folder
        (folder / "kept").write_text("by the guest")
        mounts.unmount_below(folder.parent)
        subprocess.run(["cp", "-a", former, larger], check=True)  # noqa: S603, S607 - the test's command
        os.utime(larger / root)
        moved = GuestRoots(larger / "guests").ensure("g1", larger / root).folder
        assert ((moved / "kept").read_text(), (moved / "bin/own").read_text()) == ("by the guest", "own")
        assert str(larger) in (moved.parent / "root.json").read_text()

    with_mounts(check)


def test_a_copied_root_file_system_is_another_image(
    roots: GuestRoots, image: Path, tmp_path: Path, with_mounts: Run
) -> None:
    def check() -> None:
        folder = roots.ensure("g1", image).folder
        (folder / "kept").touch()
        mounts.unmount_below(folder.parent)
        subprocess.run(["cp", "-a", image, tmp_path / "copy"], check=True)  # noqa: S603, S607 - the test's command
        image.rename(tmp_path / "former")
        (tmp_path / "copy").rename(image)
        assert "kept" not in list_names(roots.ensure("g1", image).folder)

    with_mounts(check)


@pytest.mark.parametrize("step", ["mount_overlay", "shift_owners", "write_durably"])
def test_an_incomplete_root_is_created_again(
    roots: GuestRoots, image: Path, with_mounts: Run, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:

    class KilledError(Exception):
        pass

    def die(*_: object) -> None:
        raise KilledError

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def check() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(mounts, "mounted_with_shifted_owners", refuse)
            patch.setattr(mounts if step == "mount_overlay" else guest_roots, step, die)
            with pytest.raises(KilledError):
                roots.ensure("g1", image)
        folder = roots.ensure("g1", image).folder
        assert (folder / "bin/own").stat().st_uid == SHIFT + 7
        roots.ensure_none("g1")
        assert list_names(folder.parent) == ["ids"]
        assert mounts.list_mounts(folder.parent) == []

    with_mounts(check)


def test_a_guests_disk_has_a_maximum_size(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    def check() -> None:
        folder = roots.ensure("g1", image, 16).folder
        with pytest.raises(OSError, match="No space left") as raised, (folder / "large").open("wb") as file:
            file.write(bytes(20 << 20))
        assert raised.value.errno == errno.ENOSPC
        (folder / "large").unlink()
        (folder / "kept").touch()
        assert (roots.ensure("g1", image, 16).folder / "kept").exists()
        assert not (roots.ensure("g1", image, 24).folder / "kept").exists()
        roots.ensure_none("g1")
        assert mounts.list_mounts(folder.parent) == []

    with_mounts(check)


def test_only_the_guest_may_enter_its_folder(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    """If other users could enter the folder, they could run programs that the guest made set-user-ID."""

    def check() -> None:
        folder = roots.ensure("g1", image).folder
        for path in folder.parents[1:]:
            path.chmod(0o755)
        codes = [run_as(uid, "ls", str(folder / "bin")) for uid in (SHIFT, SHIFT + 65536, 65534)]
        assert codes == [0, 2, 2]

    with_mounts(check)


def test_devices_of_an_image_cannot_be_opened(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    os.mknod(image / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))

    def check() -> None:
        with pytest.raises(PermissionError):
            (roots.ensure("g1", image).folder / "zero").read_bytes()

    with_mounts(check)


def test_a_tree_of_any_depth_is_removed(roots: GuestRoots, image: Path, with_mounts: Run) -> None:
    def check() -> None:
        folder = roots.ensure("g1", image).folder
        descriptor = os.open(folder.parent / "layers/upper", os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("d", dir_fd=descriptor)
            inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.close(descriptor)
        roots.ensure_none("g1")
        assert list_names(folder.parent) == ["ids"]

    with_mounts(check)


def test_a_long_change_of_owners_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    monkeypatch.setattr(shifted_owners, "PROGRESS_S", 0.0)
    progress: list[str] = []
    shift_owners(tmp_path, SHIFT, 65536, lambda: progress.append("made"))
    assert progress == ["made", "made"]


def test_mount_points_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel escapes only space, tab, newline and backslash (proc(5)). Users can create mounts with FUSE."""
    names = (rb"a\040\011\012\134b", b"\xff", b"\r\x0b\x0c\x1c", b"\xc2\x85", b"\xe2\x80\xa8")
    points = (os.fsencode(tmp_path) + b"/" + name for name in names)
    (tmp_path / "mountinfo").write_bytes(b"".join(b"1 2 0:3 / %b rw - tmpfs x rw\n" % point for point in points))
    monkeypatch.setattr(mounts, "MOUNT_INFO", tmp_path / "mountinfo")
    assert [os.fsencode(path.name) for path in mounts.list_mounts(tmp_path)] == [b"a \t\n\\b", *names[1:]]


def test_a_root_is_removed_in_a_linked_folder(roots: GuestRoots, image: Path, tmp_path: Path, with_mounts: Run) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    linked = GuestRoots(tmp_path / "link/guests")

    def check() -> None:
        root = linked.ensure("g1", image)
        assert (root.folder, linked.find("g1")) == (tmp_path / "link/guests/g1/root", root)
        linked.ensure_none("g1")
        assert (list_names(tmp_path / "guests/g1"), roots.find("g1")) == (["ids"], None)

    with_mounts(check)


def test_an_image_without_a_root_is_refused(roots: GuestRoots, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cannot read the root of the image .*missing: No such file"):
        roots.ensure("g1", tmp_path / "missing")
