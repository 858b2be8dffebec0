"""Tests of archives of containers' roots, with the kernel's real mounts and user namespaces."""

import errno
import io
import os
import socket
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.guests import mounts, root_archives
from virtcloud.agent.guests.guest_roots import GuestRoots
from virtcloud.agent.guests.root_archives import list_key_lines, open_root_archive
from virtcloud.agent.guests.shifted_owners import CAPABILITIES
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import GuestSeed

Pack = Callable[..., dict[str, tarfile.TarInfo]]
RAW_SOCKETS = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)  # capabilities(7), version 2: cap_net_raw, effective
KEY = "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNz" * 8, "c2VjcmV0" * 8, "-----END-----", ""])
SECRETS = (
    *("etc/ssh/ssh_host_ed25519_key", "root/.ssh/authorized_keys", "home/alice/.ssh/id_ed25519", ".ssh/id_rsa"),
    *("var/lib/cloud/seed/nocloud/user-data", "var/lib/cloud/instance/obj.pkl", "var/lib/systemd/random-seed"),
    *("var/lib/dbus/machine-id", "run/pid", "tmp/file", "var/log/auth.log", "home/alice/.bash_history", "etc/hostname"),
)


@pytest.fixture(params=["mount", "files"])
def shifted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: the agent shifts owners by an idmapped mount ("mount"), or changes each file ("files")."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    if request.param == "files":
        monkeypatch.setattr(mounts, "mounted_with_shifted_owners", refuse)


@pytest.fixture
def pack(tmp_path: Path, with_mounts: Run) -> Pack:
    (tmp_path / "guests/g1").mkdir(parents=True)

    def run(texts: tuple[str, ...] = (), change: Callable[[Path], object] = lambda _: None) -> bytes:
        root = GuestRoots(tmp_path / "guests").ensure("g1", tmp_path / "image")
        change(root.folder)
        with open_root_archive(tmp_path / "guests") as archive:
            sizes = list(archive.pack(root, texts))
            data = b"".join(archive.read())
            assert (sizes[-1], archive.describe().size) == (len(data), len(data))
            return data

    def entries(*arguments: object) -> dict[str, tarfile.TarInfo]:
        data = with_mounts(lambda: run(*arguments))  # type: ignore[arg-type]
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return {entry.name.removeprefix("./"): entry for entry in tar}

    return entries


def write(folder: Path, *files: str, text: str = "x") -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


@pytest.mark.usefixtures("shifted")
def test_owners_modes_and_capabilities_are_those_inside_the_guest(tmp_path: Path, pack: Pack) -> None:
    image = tmp_path / "image"
    write(image, "bin/ping", "bin/own")
    (image / "bin/ping").chmod(0o4755)
    os.setxattr(image / "bin/ping", CAPABILITIES, RAW_SOCKETS)
    os.chown(image / "bin/own", 7, 8)
    found = pack()
    assert (found["bin/ping"].mode, found["bin/own"].uid, found["bin/own"].gid) == (0o4755, 7, 8)
    assert {(entry.uid, entry.gid) for name, entry in found.items() if name != "bin/own"} == {(0, 0)}
    stored = found["bin/ping"].pax_headers[f"SCHILY.xattr.{CAPABILITIES}"]
    assert stored.encode("utf-8", "surrogateescape") == RAW_SOCKETS


def test_keys_and_state_are_left_out(tmp_path: Path, pack: Pack) -> None:
    write(tmp_path / "image", *SECRETS, "etc/machine-id", "home/alice/results.txt", "etc/ssh/sshd_config")
    found = pack()
    assert not set(SECRETS) & set(found)
    assert found["etc/machine-id"].size == 0
    assert {"home/alice/results.txt", "etc/ssh/sshd_config", "var/log", "home/alice/.ssh"} <= set(found)


def test_copies_of_the_clusters_keys_are_left_out(tmp_path: Path, pack: Pack) -> None:
    seed = GuestSeed.model_validate({"user": "alice", "host_key": KEY, "cluster_key": KEY})
    write(tmp_path / "image", "opt/backup/key", text=f"  {KEY}".replace("\n", "\n  "))
    write(tmp_path / "image", "opt/other")
    found = pack(tuple(list_key_lines(seed)))
    assert {"opt/backup", "opt/other"} <= set(found)
    assert "opt/backup/key" not in found


def test_links_to_files_of_the_seed_become_regular_files(tmp_path: Path, pack: Pack) -> None:
    (tmp_path / "image/etc").mkdir(parents=True)
    (tmp_path / "image/etc/hosts").symlink_to("/etc/virtcloud/hosts")
    assert pack()["etc/hosts"].isreg()


@pytest.mark.parametrize("remains", [True, False])
def test_no_image_is_made_of_a_root_removed_meanwhile(tmp_path: Path, with_mounts: Run, *, remains: bool) -> None:
    write(tmp_path / "image/a", *map(str, range(50)), text=os.urandom(1 << 18).hex())
    write(tmp_path / "image/z", "file")
    (tmp_path / "guests/g1").mkdir(parents=True)
    roots = GuestRoots(tmp_path / "guests")

    def run() -> None:
        root = roots.ensure("g1", tmp_path / "image")
        with open_root_archive(tmp_path / "guests") as archive:
            packing = archive.pack(root, ())
            next(packing)
            if remains:
                mounts.unmount_below(tmp_path / "guests/g1")
            else:
                roots.ensure_none("g1")
            with pytest.raises(Refused, match=r"the guest was removed meanwhile|cannot pack the root"):
                list(packing)

    with_mounts(run)


def test_links_of_a_guest_reach_no_file_of_the_host(tmp_path: Path, pack: Pack) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    (tmp_path / "image/etc").mkdir(parents=True)

    def change(root: Path) -> None:
        (root / "link").symlink_to(secret)
        (root / "up").symlink_to("../../../..")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(root / "socket"))
        os.mkfifo(root / "fifo")

    found = pack((), change)
    assert (found["link"].type, found["link"].linkname) == (tarfile.SYMTYPE, str(secret))
    assert (found["up"].type, found["fifo"].type) == (tarfile.SYMTYPE, tarfile.FIFOTYPE)
    assert "socket" not in found


def test_modules_of_the_guest_are_not_imported(tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packing program enters the guest's root. There, an import could load a module of the guest.

    The test adds an import to the packing program. The import must fail, although the guest's root contains the module.
    """
    module = f"{os.__file__.rpartition('/')[0].lstrip('/')}/colorsys.py"
    write(tmp_path / "image", module, text="import os; os.write(2, b'guest code')")
    program = root_archives.PROGRAM.read_text()
    changed = program.replace("    pack(sys.stdout.buffer", "    import colorsys\n    pack(sys.stdout.buffer")
    write(tmp_path, "program.py", text=changed)
    monkeypatch.setattr(root_archives, "PROGRAM", tmp_path / "program.py")
    with pytest.raises(Refused, match="No module named 'colorsys'"):
        pack()


def test_the_program_is_killed_at_the_end_of_the_agent(
    tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel sends a process its parent-death signal when the parent ends (prctl(2)).

    The test changes the packing program, so that the program raises an error whose message contains the number of the
    program's parent-death signal.
    """
    (tmp_path / "image").mkdir()
    report = "    libc.prctl(2, ctypes.byref(number := ctypes.c_int()))\n    raise OSError(f'signal {number.value}')\n"
    program = root_archives.PROGRAM.read_text()
    write(
        tmp_path,
        "program.py",
        text=program.replace("    pack(sys.stdout.buffer", f"{report}    pack(sys.stdout.buffer"),
    )
    monkeypatch.setattr(root_archives, "PROGRAM", tmp_path / "program.py")
    with pytest.raises(Refused, match="signal 9"):
        pack()


def test_hard_links_stay_one_file(tmp_path: Path, pack: Pack) -> None:
    write(tmp_path / "image", "bin/a")
    (tmp_path / "image/bin/b").hardlink_to(tmp_path / "image/bin/a")
    assert (pack()["bin/b"].type, pack()["bin/b"].linkname) == (tarfile.LNKTYPE, "./bin/a")


def test_a_full_disk_is_refused_with_the_reason(tmp_path: Path, with_mounts: Run) -> None:
    (tmp_path / "guests/g1").mkdir(parents=True)
    (tmp_path / "image").mkdir()
    (tmp_path / "image/file").write_bytes(os.urandom(3 << 20))

    def check() -> None:
        (tmp_path / "small").mkdir()
        mounts._run("mount", "-t", "tmpfs", "-o", "size=1m", "small", str(tmp_path / "small"))
        root = GuestRoots(tmp_path / "guests").ensure("g1", tmp_path / "image")
        with open_root_archive(tmp_path / "small") as archive, pytest.raises(Refused, match="No space left on device"):
            list(archive.pack(root, ()))
        assert list((tmp_path / "small").iterdir()) == []

    with_mounts(check)
