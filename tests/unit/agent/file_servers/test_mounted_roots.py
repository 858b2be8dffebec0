"""Tests of the search for the mount of an exported folder. They need no NFS-Ganesha."""

import os
from pathlib import Path

import pytest

from virtcloud.agent.file_servers import ganesha_program
from virtcloud.agent.file_servers.ganesha_program import find_mounted_root


@pytest.mark.parametrize("name", [b"\r\r", b"\r%b", b"\xff", b"\x0b"])
def test_other_mount_points_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """Users can create mounts with FUSE. The kernel escapes no carriage return (proc(5))."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    number = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes().partition(b"mnt_id:\t")[2].split()[0]
    other = b"1 2 0:3 / /home/" + name.replace(b"%b", number + b" 2 0:3 / /forged x") + b" rw - fuse x rw\n"
    mounts = b"%b%b 2 0:4 / /exports/\x0b rw - ext4 x rw\n" % (other, number)
    (tmp_path / "mountinfo").write_bytes(mounts)
    monkeypatch.setattr(ganesha_program, "MOUNT_INFO", tmp_path / "mountinfo")
    assert find_mounted_root(descriptor) == (b"/", b"/exports/\x0b")
    os.close(descriptor)
