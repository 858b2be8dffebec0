import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.hosts.image_host import MIB, FileServer, Host

from virtcloud.agent.guests import unpack_program
from virtcloud.agent.guests.images import LxcImage
from virtcloud.model.errors import Refused

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can unpack a root file system")


def member(name: str, data: bytes = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755
    for key, value in changes.items():
        setattr(info, key, value)
    return info, data


def sparse_member(part: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return an empty sparse file (GNU format 0.1) whose list contains a part of ``part`` bytes."""
    headers = {"GNU.sparse.map": f"0,{part}", "GNU.sparse.size": "0"}
    return member("zeros", bytes(8 * MIB), pax_headers=headers)


SPARSE = {"GNU.sparse.map": "0,5,8192,6", "GNU.sparse.size": "8198"}
INIT = member("sbin/init", b"#!/bin/sh\n")


def archive(
    *members: tuple[tarfile.TarInfo, bytes], mode: str = "w", init: tuple[tarfile.TarInfo, bytes] = INIT
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for info, data in (*members, init):
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@needs_root
@pytest.mark.parametrize(
    ("image_format", "data"),
    [("tar", archive()), ("tar.gz", archive(mode="w:gz")), ("tar.xz", archive(mode="w:xz"))],
    ids=["tar", "gz", "xz"],
)
def test_archives_are_unpacked(host: Host, server: FileServer, image_format: str, data: bytes) -> None:
    server.data = data
    image = host.get(host.source(format=image_format))
    assert isinstance(image, LxcImage)
    assert (image.rootfs / "sbin/init").read_bytes() == b"#!/bin/sh\n"


@needs_root
@pytest.mark.parametrize("target", ["/proc/1/none", "init"])
def test_hard_links_to_symbolic_links_are_unpacked(host: Host, server: FileServer, target: str) -> None:
    server.data = archive(
        member("sbin/first", type=tarfile.SYMTYPE, linkname=target),
        member("sbin/second", type=tarfile.LNKTYPE, linkname="sbin/first"),
    )
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert [str((image.rootfs / name).readlink()) for name in ("sbin/first", "sbin/second")] == [target, target]


@needs_root
@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_hard_links_to_devices_and_fifos_are_omitted(host: Host, server: FileServer, kind: bytes) -> None:
    links = {"dev/second": "dev/first", "dev/third": "dev/second"}
    server.data = archive(
        member("dev/first", type=kind),
        *(member(name, type=tarfile.LNKTYPE, linkname=first) for name, first in links.items()),
    )
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert [str(path.relative_to(image.rootfs)) for path in image.rootfs.rglob("*")] == ["sbin", "sbin/init"]


@needs_root
def test_a_hard_link_to_a_missing_file_is_named(host: Host, server: FileServer) -> None:
    """The file was excluded when the archive was created, so the archive is not damaged."""
    server.data = archive(member("bin/b", type=tarfile.LNKTYPE, linkname="bin/a"))
    expected = "expected 'bin/a' before 'bin/b' in the archive, .* got no such file: create the archive again"
    with pytest.raises(Refused, match=expected):
        host.get(host.source(format="tar"))


@needs_root
@pytest.mark.parametrize(
    ("packed", "changes"),
    [
        (b"first" + bytes(507) + b"second", {"pax_headers": SPARSE}),
        (b"first", {"type": tarfile.CONTTYPE}),
        (b"first", {"type": b"Z"}),
    ],
    ids=["sparse", "contiguous", "unknown"],
)
def test_files_of_rare_types_are_unpacked_and_counted(
    host: Host, server: FileServer, packed: bytes, changes: dict[str, Any]
) -> None:
    server.data = archive(member("data", packed, **changes))
    source = host.source(format="tar")
    image = host.get(source)
    assert isinstance(image, LxcImage)
    content = (image.rootfs / "data").read_bytes()
    assert content[:5] == b"first"
    size = int((host.path / "images" / source.sha256 / "size").read_text())
    assert size == len(content) + len(INIT[1]) + 2 * 4096


def pack_with_zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=data, capture_output=True, check=True).stdout  # noqa: S607


@needs_root
@pytest.mark.skipif(shutil.which("zstd") is None, reason="NOT TESTED: zstd is not installed")
def test_an_archive_of_zstd_is_unpacked(host: Host, server: FileServer) -> None:
    server.data = pack_with_zstd(archive())
    image = host.get(host.source(format="tar.zst"))
    assert isinstance(image, LxcImage)
    assert (image.rootfs / "sbin/init").exists()


@needs_root
@pytest.mark.skipif(shutil.which("zstd") is None, reason="NOT TESTED: zstd is not installed")
def test_an_archive_damaged_after_a_member_is_refused(host: Host, server: FileServer) -> None:
    data = archive(INIT, init=member("bin/sh", b"x"))
    first, rest = data[:1024], data[1024:]  # a header of 512 bytes, and a block of 512 bytes with the content
    server.data = pack_with_zstd(first) + pack_with_zstd(rest)[:-1]
    with pytest.raises(Refused, match="cannot unpack the archive: zstd ended with exit code 1"):
        host.get(host.source(format="tar.zst"))


@needs_root
def test_only_root_reaches_programs_of_an_image(host: Host, server: FileServer) -> None:
    server.data = archive(member("bin/su", b"x", mode=0o4755))
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    modes = (image.rootfs / "bin/su").stat().st_mode & 0o7777, image.rootfs.parent.stat().st_mode & 0o7777
    assert modes == (0o4755, 0o700)


@needs_root
def test_programs_keep_their_capabilities(host: Host, server: FileServer) -> None:
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    headers = {"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape")}
    server.data = archive(member("bin/ping", b"x", pax_headers=headers))
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert os.getxattr(image.rootfs / "bin/ping", "security.capability") == capability


@needs_root
def test_an_archive_writes_nothing_outside_its_folder(host: Host, server: FileServer) -> None:
    victim = host.path / "victim"
    victim.mkdir()
    up = "../" * 30 + str(victim).lstrip("/")
    server.data = archive(
        member("out", type=tarfile.SYMTYPE, linkname=str(victim)),
        member("out/one", b"x"),
        member(f"{up}/two", b"x"),
        member(f"{victim}/three", b"x"),
        member("hard", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("hard", b"x"),
    )
    passwd = Path("/etc/passwd").read_bytes()
    with suppress(Refused):
        host.get(host.source(format="tar"))
    assert (list(victim.iterdir()), Path("/etc/passwd").read_bytes()) == ([], passwd)


@needs_root
def test_the_unpacking_program_keeps_capabilities_for_files(tmp_path: Path) -> None:
    """While the program waits for the rest of the archive, it has only capabilities for files."""
    argv = [sys.executable, "-I", "-S", unpack_program.__file__, str(tmp_path), "", str(MIB), "10", "x86_64"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as program:  # noqa: S603 - a program of this package
        assert program.stdin is not None
        program.stdin.write(archive(member("big", bytes(20_000)))[:10_240])
        program.stdin.flush()
        status = Path(f"/proc/{program.pid}/status")
        deadline = time.monotonic() + 60
        while "CapEff:\t000000008000001b" not in status.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "CapPrm:\t000000008000001b\nCapEff:\t000000008000001b" in status.read_text()
        program.kill()


@needs_root
def test_zstd_does_not_run_as_root(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server.data = b"\x28\xb5\x2f\xfd"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "zstd").write_text("#!/bin/sh\n/usr/bin/id -u >&2\nexit 1\n")
        Path(folder, "zstd").chmod(0o755)
        monkeypatch.setattr(os, "defpath", folder)
        with pytest.raises(Refused, match="cannot unpack the archive"):
            host.get(host.source(format="tar.zst"))
    assert capfd.readouterr().err == "65534\n"


@needs_root
def test_an_archive_creates_no_devices(host: Host, server: FileServer) -> None:
    server.data = archive(
        member("dev/sda", type=tarfile.BLKTYPE, devmajor=8), member("dev/fifo", type=tarfile.FIFOTYPE)
    )
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert sorted(path.name for path in image.rootfs.rglob("*")) == ["init", "sbin"]


@needs_root
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(member("zeros", bytes(8 * MIB)), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (archive(*(member(f"f{n}") for n in range(200)), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (
            archive(mode="w:gz")[:-20],
            "cannot unpack the archive: expected a complete archive, got a damaged .* get the",
        ),
        (archive(member("zeros", bytes(8 * MIB), type=b"Z"), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (archive(sparse_member("8388608"), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (archive(sparse_member("-1"), mode="w:gz"), "expected a size of at least 0 for 'zeros', got a negative size"),
    ],
    ids=["bytes", "files", "damaged", "unknown-type", "sparse-parts", "negative-part"],
)
def test_a_bomb_or_a_damaged_archive_is_refused(host: Host, server: FileServer, data: bytes, message: str) -> None:
    server.data = data
    with pytest.raises(Refused, match=message):
        host.get(host.source(format="tar.gz"))
    assert host.files == []


@needs_root
def test_an_init_for_another_processor_architecture_is_refused(host: Host, server: FileServer) -> None:
    elf = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little")
    server.data = archive(init=member("sbin/init", elf))
    with pytest.raises(Refused, match="archive: expected programs for x86_64, but /sbin/init is for aarch64"):
        host.get(host.source(format="tar"))
