"""The kernel of QEMU guests: an installed kernel, or one fetched with apt and stored for the next lab."""

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
    """A machine on which no cloud kernel is installed or was fetched."""
    for name in ("BOOT", "MODULE_TREE", "FETCHED"):
        monkeypatch.setattr(guest_kernel, name, tmp_path / name)
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def debian(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake apt programs of a Debian with outdated package lists, and a minimal kernel package."""
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
    program(machine / "bin", "apt-cache", APT_CACHE)
    program(machine / "bin", "apt-get", APT_GET.format(package=package))
    monkeypatch.setenv("PATH", f"{machine / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_an_installed_kernel_is_taken_the_newest_with_modules_first(machine: Path) -> None:
    for version in ("6.1.0-1-cloud-amd64", "6.1.0-2-cloud-amd64", "6.1.0-3-cloud-amd64", "6.1.0-4-amd64"):
        (machine / "BOOT").mkdir(exist_ok=True)
        (machine / "BOOT" / f"vmlinuz-{version}").touch()
    for version in ("6.1.0-1-cloud-amd64", "6.1.0-2-cloud-amd64"):
        (machine / "MODULE_TREE" / version / "net").mkdir(parents=True)
        (machine / "MODULE_TREE" / version / "net/virtio_net.ko").touch()
        (machine / "MODULE_TREE" / version / "virtio_ring.ko").touch()
    found = guest_kernel.fetch_guest_kernel(lambda _: None)
    assert found.image.name == "vmlinuz-6.1.0-2-cloud-amd64"
    assert [module.name for module in found.modules] == ["virtio_ring.ko", "virtio_net.ko"]


def test_a_fetched_kernel_is_stored_with_the_needed_modules_only(machine: Path, debian: None) -> None:
    said: list[LabEvent] = []
    found = guest_kernel.fetch_guest_kernel(said.append)
    assert found.image.read_text() == "the kernel"
    assert [module.name for module in found.modules] == ["virtio.ko", "virtio_net.ko.xz"]
    assert sorted(one.name for one in (machine / "FETCHED").iterdir()) == ["virtio.ko", "virtio_net.ko.xz", "vmlinuz"]
    assert [event.state for event in said] == ["begin", "note", "note", "done"]
    assert "fetching linux-image-cloud-amd64 from Debian" in said[1].text
    assert "it is not installed" in said[2].text


def test_a_stored_kernel_is_not_fetched_again(debian: None) -> None:
    first = guest_kernel.fetch_guest_kernel(lambda _: None)
    said: list[LabEvent] = []
    assert guest_kernel.fetch_guest_kernel(said.append) == first
    assert said == []


def test_an_unavailable_kernel_has_a_remedy(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin", "apt-cache", "#!/bin/sh\nexit 0\n")
    program(machine / "bin", "apt-get", "#!/bin/sh\necho 'E: no network' >&2; exit 100\n")
    monkeypatch.setenv("PATH", str(machine / "bin"))
    with pytest.raises(LabImpossible, match=r"could not be fetched; apt-get install .*\[lxc\]\nE: no network"):
        guest_kernel.fetch_guest_kernel(lambda _: None)
    assert not (machine / "FETCHED").exists()


def test_a_machine_without_apt_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabImpossible, match=r"apt-cache cannot fetch a kernel for QEMU guests: .*apt-get install"):
        guest_kernel.fetch_guest_kernel(lambda _: None)
