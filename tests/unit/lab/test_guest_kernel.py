"""Tests of the choice of the kernel of QEMU guests: an installed kernel, or a kernel that apt downloads."""

import lzma
import os
import subprocess
from pathlib import Path

import pytest

from virtcloud.lab import LabEvent, LabImpossible, guest_kernel

VERSION = "6.1.0-99-cloud-amd64"
APT_CACHE = (
    f"#!/bin/sh\n[ -e lists-are-new ] && echo 'linux-image-cloud-amd64\n  Depends: linux-image-{VERSION}'\nexit 0\n"
)
APT_GET = """#!/bin/sh
case "$*" in
  *update) touch lists-are-new ;;
  *download\\ linux-image-6.1.0-99-cloud-amd64) cp {package} . ;;
  *) exit 100 ;;
esac
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BOOT", "MODULE_TREE", "FETCHED"):
        monkeypatch.setattr(guest_kernel, name, tmp_path / name)
    return tmp_path


def write_program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def debian(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = machine / "tree"
    for file in (f"boot/vmlinuz-{VERSION}", f"boot/config-{VERSION}", "DEBIAN/control"):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text("the kernel")
    (tree / "DEBIAN/control").write_text("Package: k\nVersion: 1\nArchitecture: all\nMaintainer: n\nDescription: k\n")
    (tree / "DEBIAN").chmod(0o755)
    modules = tree / "lib/modules" / VERSION / "kernel/drivers"
    modules.mkdir(parents=True)
    (modules / "virtio_net.ko.xz").write_bytes(lzma.compress(b"net"))
    (modules / "virtio.ko").write_text("virtio")
    (modules / "floppy.ko").write_text("floppy")
    package = machine / "k.deb"
    subprocess.run(["dpkg-deb", "-b", tree, package], check=True, capture_output=True)  # noqa: S603, S607
    write_program(machine / "bin", "apt-cache", APT_CACHE)
    write_program(machine / "bin", "apt-get", APT_GET.format(package=package))
    monkeypatch.setenv("PATH", f"{machine / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_the_newest_installed_kernel_with_modules_is_used(machine: Path) -> None:
    for version in ("6.1.0-1-cloud-amd64", "6.1.0-2-cloud-amd64", "6.1.0-3-cloud-amd64", "6.1.0-4-amd64"):
        (machine / "BOOT").mkdir(exist_ok=True)
        (machine / "BOOT" / f"vmlinuz-{version}").touch()
    for version in ("6.1.0-1-cloud-amd64", "6.1.0-2-cloud-amd64"):
        (machine / "MODULE_TREE" / version / "net").mkdir(parents=True)
        (machine / "MODULE_TREE" / version / "net/virtio_net.ko").touch()
        (machine / "MODULE_TREE" / version / "virtio_ring.ko").touch()
    kernel = guest_kernel.fetch_guest_kernel(lambda _: None)
    assert kernel.image.name == "vmlinuz-6.1.0-2-cloud-amd64"
    assert [module.name for module in kernel.modules] == ["virtio_ring.ko", "virtio_net.ko"]


def test_versions_of_kernels_are_compared_as_numbers(machine: Path) -> None:
    for version in ("6.1.0-9-cloud-amd64", "6.1.0-10-cloud-amd64"):
        (machine / "MODULE_TREE" / version).mkdir(parents=True)
        (machine / "BOOT").mkdir(exist_ok=True)
        (machine / "BOOT" / f"vmlinuz-{version}").touch()
    found = guest_kernel.find_guest_kernel()
    assert found is not None
    assert found.image.name == "vmlinuz-6.1.0-10-cloud-amd64"


def test_only_required_modules_of_a_downloaded_kernel_are_stored(machine: Path, debian: None) -> None:
    events: list[LabEvent] = []
    kernel = guest_kernel.fetch_guest_kernel(events.append)
    assert kernel.image.read_text() == "the kernel"
    assert [module.name for module in kernel.modules] == ["virtio.ko", "virtio_net.ko.xz"]
    assert sorted(file.name for file in (machine / "FETCHED").iterdir()) == ["virtio.ko", "virtio_net.ko.xz", "vmlinuz"]
    assert [event.state for event in events] == ["begin", "note", "note", "done"]
    assert "downloading linux-image-cloud-amd64 from Debian" in events[1].text
    assert "it is not installed" in events[2].text


def test_a_stored_kernel_is_not_downloaded_again(debian: None) -> None:
    first = guest_kernel.fetch_guest_kernel(lambda _: None)
    events: list[LabEvent] = []
    assert guest_kernel.fetch_guest_kernel(events.append) == first
    assert events == []


def test_the_error_for_an_unavailable_kernel_contains_a_remedy(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(machine / "bin", "apt-cache", "#!/bin/sh\nexit 0\n")
    write_program(machine / "bin", "apt-get", "#!/bin/sh\necho 'E: no network' >&2; exit 100\n")
    monkeypatch.setenv("PATH", str(machine / "bin"))
    message = r"could not be downloaded; apt-get install .*\[lxc\] for all hosts of the lab file\nE: no network"
    with pytest.raises(LabImpossible, match=message):
        guest_kernel.fetch_guest_kernel(lambda _: None)
    assert not (machine / "FETCHED").exists()


def test_the_error_without_apt_contains_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabImpossible, match=r"apt-cache cannot download a kernel for QEMU guests: .*apt-get install"):
        guest_kernel.fetch_guest_kernel(lambda _: None)
