"""The kernel of the lab's QEMU guests: Debian's cloud kernel, installed on the machine or downloaded for the lab.

A downloaded kernel and a few modules are unpacked into the lab's cache; the package is not installed.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.fabric.events import LabEvent, Watcher
from virtcloud.lab.node_services import CACHE

METAPACKAGE = "linux-image-cloud-amd64"
MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "cdrom",
    "isofs",
)
"""The kernel modules for a guest's network card, disk and seed, in loading order. A kernel lacks the files of modules
that are built in.
"""
SUFFIXES = (".ko", ".ko.xz")
BOOT = Path("/boot")
MODULE_TREE = Path("/lib/modules")
FETCHED = Path(CACHE, "guest-kernel-with-isofs")  # a new name: the folders of earlier versions lack modules
STEP = "guest kernel"


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """A kernel and its module files, in loading order."""

    image: Path
    modules: tuple[Path, ...]


def find_guest_kernel() -> GuestKernel | None:
    """Return the newest cloud kernel that is installed on the machine, otherwise the downloaded kernel, or None."""
    for image in sorted(BOOT.glob("vmlinuz-*cloud-amd64"), key=_version_numbers, reverse=True):
        modules = MODULE_TREE / image.name.removeprefix("vmlinuz-")
        if modules.is_dir():
            return GuestKernel(image, _modules(list(modules.rglob("*.ko*"))))
    image = FETCHED / "vmlinuz"
    return (
        GuestKernel(image, _modules(list(FETCHED.iterdir()))) if os.access(image, os.R_OK, effective_ids=True) else None
    )


def _version_numbers(image: Path) -> tuple[int, ...]:
    """Return (6, 1, 0, 10, 64) for ``vmlinuz-6.1.0-10-cloud-amd64``."""
    return tuple(int(number) for number in re.findall(r"\d+", image.name))


def _modules(files: Sequence[Path]) -> tuple[Path, ...]:
    files_by_name = {_module_name(file.name): file for file in files}
    return tuple(files_by_name[name] for name in MODULES if name in files_by_name)


def _module_name(file: str) -> str:
    return next((file.removesuffix(suffix) for suffix in SUFFIXES if file.endswith(suffix)), "")


def fetch_guest_kernel(watch: Watcher) -> GuestKernel:
    """Return the guest kernel. If this machine has none, download a kernel from Debian. Idempotent.

    Raise LabImpossible if the kernel cannot be downloaded.
    """
    kernel = find_guest_kernel()
    if kernel is not None:
        return kernel
    watch(LabEvent(STEP, "begin"))
    watch(LabEvent(STEP, "note", f"this machine has no kernel for QEMU guests: downloading {METAPACKAGE} from Debian"))
    with tempfile.TemporaryDirectory() as folder:
        package = _download(Path(folder))
        watch(LabEvent(STEP, "note", f"{package.name} is unpacked into {FETCHED}; it is not installed"))
        _store_package(package, FETCHED)
    watch(LabEvent(STEP, "done"))
    kernel = find_guest_kernel()
    if kernel is None:
        raise LabImpossible(f"{package.name} contains no kernel; {_remedy()}")
    return kernel


def _download(folder: Path) -> Path:
    output = ""
    for attempt in range(2):
        if attempt:
            output = _apt(folder, "apt-get", "-q", "update").stderr
        depends = _apt(folder, "apt-cache", "depends", "--important", METAPACKAGE).stdout.split()
        names = [word for word in depends if word.startswith("linux-image-") and word != METAPACKAGE]
        if names:
            output = _apt(folder, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", names[0]).stderr
        for package in folder.glob("*.deb"):
            return package
    raise LabImpossible(
        f"QEMU guests need a kernel, and {METAPACKAGE} could not be downloaded; {_remedy()}\n{output}".strip()
    )


def _remedy() -> str:
    return f"apt-get install {METAPACKAGE}, or set hypervisors: [lxc] for all hosts of the lab file"


def _apt(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise LabImpossible(f"{command[0]} cannot download a kernel for QEMU guests: {error}; {_remedy()}") from error


def _store_package(package: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        _unpack(package, unpacked)
        unpacked.chmod(0o755)
        unpacked.rename(target)
    except OSError:
        if not target.exists():  # another lab stored the same kernel first
            raise
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack(package: Path, folder: Path) -> None:
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,  # noqa: S603 - the package that apt has just downloaded
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        for member in archive:
            name = _extracted_name(Path(member.name))
            content = archive.extractfile(member) if name else None
            if content is not None:
                (folder / name).write_bytes(content.read())


def _extracted_name(path: Path) -> str:
    if path.parent.name == "boot" and path.name.startswith("vmlinuz-"):
        return "vmlinuz"
    return path.name if _module_name(path.name) in MODULES else ""
