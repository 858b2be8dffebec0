"""The choice between the installed User-mode Linux and an unpacked package."""

from pathlib import Path

import pytest

from virtcloud.lab import lab_kernel, uml_kernel
from virtcloud.lab.uml_kernel import UmlKernel, find_uml_kernel

OLD, NEW = UmlKernel(Path("/"), "6.1.176"), UmlKernel(Path("/cache/7.2um1"), "7.2.7")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(uml_kernel, "INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(uml_kernel, "UNPACKED", tmp_path / "unpacked")
    return tmp_path


def add_kernel(root: Path, release: str, program: str = 'echo "$RELEASE"') -> None:
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/lib/uml/modules" / release).mkdir(parents=True)
    path = root / "usr/bin/linux.uml"
    path.write_text(f"#!/bin/sh\nRELEASE={release}\n{program}\n")
    path.chmod(0o755)


def test_an_unpacked_kernel_replaces_an_older_installed_kernel(machine: Path) -> None:
    add_kernel(machine / "installed", "6.12.5")
    add_kernel(machine / "unpacked/7.2um1", "7.2.7")
    assert find_uml_kernel() == UmlKernel(machine / "unpacked/7.2um1", "7.2.7")


def test_an_installed_kernel_with_seccomp_is_used_directly(machine: Path) -> None:
    add_kernel(machine / "installed", "6.16.1")
    add_kernel(machine / "unpacked/7.2um1", "7.2.7")
    assert find_uml_kernel() == UmlKernel(machine / "installed", "6.16.1")


def test_without_an_unpacked_kernel_the_installed_kernel_is_used(machine: Path) -> None:
    assert find_uml_kernel() is None
    add_kernel(machine / "installed", "6.1.176")
    assert find_uml_kernel() == UmlKernel(machine / "installed", "6.1.176")


def test_the_newest_of_two_unpacked_kernels_is_used(machine: Path) -> None:
    add_kernel(machine / "unpacked/7.10um1", "7.10.2")
    add_kernel(machine / "unpacked/7.9um1", "7.9.1")
    assert find_uml_kernel() == UmlKernel(machine / "unpacked/7.10um1", "7.10.2")


@pytest.mark.parametrize("program", ["exit 1", "echo 7.3.1", "exec sleep 600"], ids=["fails", "no modules", "hangs"])
def test_a_kernel_that_cannot_run_is_not_used(machine: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(uml_kernel, "VERSION_S", 1.0 if "sleep" in program else 30.0)
    add_kernel(machine / "installed", "6.1.176")
    add_kernel(machine / "unpacked/7.2um1", "7.2.7", program)
    assert find_uml_kernel() == UmlKernel(machine / "installed", "6.1.176")


def test_a_replaced_kernel_is_recognized(machine: Path) -> None:
    add_kernel(machine / "unpacked/7.2um1", "7.2.7", "exit 127")
    assert find_uml_kernel() is None
    program = machine / "unpacked/7.2um1/usr/bin/linux.uml"
    program.write_text("#!/bin/sh\necho 7.2.7\n")
    assert find_uml_kernel() is not None


def test_only_kernels_since_linux_6_16_use_seccomp(tmp_path: Path) -> None:
    commands = [lab_kernel.uml_command(kernel, tmp_path, tmp_path / "init") for kernel in (OLD, NEW)]
    assert ["seccomp=auto" in command for command in commands] == [False, True]
    assert [str(kernel.program) in command for kernel, command in zip((OLD, NEW), commands, strict=True)] == [True] * 2


def test_a_kernel_with_seccomp_needs_no_library_for_xstate(tmp_path: Path) -> None:
    assert lab_kernel.preload_library(NEW, tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
