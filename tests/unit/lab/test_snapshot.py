import os
import subprocess
from pathlib import Path

import pytest

from virtcloud.lab.snapshot import RUNNING_GUESTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "libvirt/lxc").mkdir(parents=True)
    return tmp_path / "libvirt/lxc"


def list_guests(folder: Path) -> list[str]:
    script = RUNNING_GUESTS.replace("/run/libvirt/lxc", str(folder))
    command = ["/bin/sh", "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - the script above
    return [Path(line).stem for line in output.splitlines()]


def test_a_guest_with_a_living_process_is_listed(folder: Path) -> None:
    (folder / "vc-a.pid").write_text(str(os.getpid()))
    assert list_guests(folder) == ["vc-a"]


@pytest.mark.parametrize("text", ["", "4194305"], ids=["no process id yet", "ended process"])
def test_a_guest_without_a_process_is_not_listed(folder: Path, text: str) -> None:
    """The script reads vc-a.pid before vc-b.pid, and must not use the process ID in vc-a.pid for vc-b."""
    (folder / "vc-a.pid").write_text(str(os.getpid()))
    (folder / "vc-b.pid").write_text(text)
    assert list_guests(folder) == ["vc-a"]
