import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.lab import Lab, guest_kernel, lab_kernel, prerequisites, read_lab_file
from virtcloud.lab import lab as lab_module
from virtcloud.lab.errors import LabFailed, LabImpossible
from virtcloud.lab.state import LabState

LAB = Path(__file__).parents[2] / "lab/topologies/mixed.yaml"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user id, which needs root")


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@as_root
def test_the_lab_of_another_user_is_reported_as_inaccessible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTCLOUD_LAB_STATE", str(tmp_path / "lab"))
    LabState.of_machine().make()
    with (
        effective_user(65534),
        pytest.raises(LabImpossible, match="belongs to another user, who started the lab: run the command"),
    ):
        LabState.of_machine()


@as_root
def test_a_guest_kernel_in_an_inaccessible_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_kernel, "BOOT", Path("/absent"))
    monkeypatch.setattr(guest_kernel, "FETCHED", tmp_path / "closed/guest-kernel")
    (tmp_path / "closed/guest-kernel").mkdir(parents=True)
    (tmp_path / "closed/guest-kernel/vmlinuz").touch()
    (tmp_path / "closed").chmod(0o700)
    with effective_user(65534):
        assert guest_kernel.find_guest_kernel() is None


def test_a_full_disk_is_reported_and_the_lab_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = LabState(tmp_path / "lab")
    monkeypatch.setattr(prerequisites, "check_prerequisites", lambda _lab: None)
    monkeypatch.setattr(lab_kernel, "choose_kernel", lambda _requested: "uml")

    def launch(*_: object) -> None:
        state.make()
        target = str(state.folder / "images/busybox")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/bin/busybox", None, target)

    monkeypatch.setattr(lab_module, "launch", launch)
    with pytest.raises(LabFailed) as raised:
        Lab.up(read_lab_file(LAB), state=state)
    assert str(raised.value) == (
        f"the lab could not be started and was removed: {state.folder}/images/busybox: No space left on device; "
        "free space there, or set VIRTCLOUD_LAB_STATE to a folder with free space"
    )
    assert not state.folder.exists()


def test_an_old_python_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[3] / "setup", tmp_path / "setup")
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] || exit 1\necho Python 3.10.12\n')
    old.chmod(0o755)
    command = ["sh", str(tmp_path / "setup/install")]
    environment = {**os.environ, "PYTHON": str(old)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - a script of virtcloud
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == f"setup: virtcloud needs Python 3.11 or later; {old} is Python 3.10.12."
    assert not (tmp_path / ".venv").exists()


def test_setup_prefers_debians_python(tmp_path: Path) -> None:
    """The python3 on PATH always fails. Debian's Python works, so setup fails only later, when it finds no apt-get."""
    shutil.copytree(Path(__file__).parents[3] / "setup", tmp_path / "setup")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to("/bin/false")
    for program in ("dirname", "sed"):
        (programs / program).symlink_to(shutil.which(program) or program)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"} | {"PATH": str(programs)}
    command = ["/bin/sh", str(tmp_path / "setup/install")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - a script of virtcloud
    assert "this machine has no apt-get" in result.stderr
    assert not (tmp_path / ".venv").exists()
