"""The download of User-mode Linux from Debian `SUITE`, which is newer than the release of Debian on this machine.

The package is unpacked and not installed. ``make setup`` runs this module. APT verifies the package with the keys of
debian-archive-keyring.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from virtcloud.lab import apt_sources, glibc_names, lab_kernel, uml_kernel
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.uml_kernel import UmlKernel

PACKAGE = "user-mode-linux"
SUITE = "forky"
PREFERRED = "7.2um1"
"""The version with which the lab was tested. If `SUITE` lacks this version, the version in `SUITE` is used."""
UPDATE_S, DOWNLOAD_S = 180.0, 600.0
TRANSFER = ("Acquire::Retries=1", "Acquire::http::Timeout=20", "Acquire::https::Timeout=20")


@dataclass(frozen=True, slots=True)
class DownloadedPackage:
    """A package file and the package's version."""

    file: Path
    version: str


def main() -> int:
    """Download User-mode Linux if labs need a newer version. If the download fails, print a warning.

    Labs need no newer version if this machine's kernel suffices, or an existing User-mode Linux can use seccomp. The
    exit code is always 0.
    """
    if os.geteuid() == 0 and not lab_kernel.missing_features():
        return 0
    kernel = uml_kernel.find_uml_kernel()
    if kernel is None or not kernel.uses_seccomp:
        _print(f"downloading {PACKAGE} {PREFERRED} from Debian {SUITE} (50 MB)")
        try:
            kernel = fetch_package()
        except (LabImpossible, OSError) as error:
            older = (
                f"labs use User-mode Linux {kernel.release}, which takes twice as much processor time" if kernel else ""
            )
            _print(f"warning: {error}; {older or lab_kernel.MISSING}", sys.stderr)
            return 0
    _print(f"labs use User-mode Linux {kernel.release} ({kernel.program})")
    return 0


def _print(text: str, file: TextIO | None = None) -> None:
    print(f"setup: {text}", file=file, flush=True)


def fetch_package() -> UmlKernel:
    """Download the package, and unpack the kernel and its modules into a folder that all labs of this machine use.

    A lock prevents parallel downloads. Files of interrupted downloads are deleted first. Raise LabImpossible if the
    package cannot be downloaded, or if the kernel does not run on this machine.
    """
    uml_kernel.UNPACKED.mkdir(parents=True, exist_ok=True)
    with _lock_folder(uml_kernel.UNPACKED), tempfile.TemporaryDirectory(prefix=".", dir=uml_kernel.UNPACKED) as folder:
        package = _download(Path(folder))
        if package.version != PREFERRED:
            _print(f"Debian {SUITE} has {package.version} instead of {PREFERRED}, with which the lab was tested")
        return store_package(package.file, uml_kernel.UNPACKED / package.version)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for left in folder.glob(".*"):
            shutil.rmtree(left)
        yield
    finally:
        os.close(descriptor)


def _download(folder: Path) -> DownloadedPackage:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "sources.list").write_text(apt_sources.newer_source(SUITE))
    update = _apt(folder, UPDATE_S, "update")
    for name in (f"{PACKAGE}={PREFERRED}", PACKAGE):
        _apt(folder, DOWNLOAD_S, "download", name)
        for file in folder.glob("*.deb"):
            return DownloadedPackage(file, file.name.split("_")[1])
    raise LabImpossible(f"{PACKAGE} could not be downloaded from Debian {SUITE}: {update or 'the suite lacks it'}")


def _apt(folder: Path, seconds: float, *command: str) -> str:
    own = ("State::Lists=lists", "Cache=cache", "Etc::SourceList=sources.list", "Etc::SourceParts=none")
    options = [f"Dir::{name}={folder / path}" for name, path in (option.split("=") for option in own)]
    arguments = [
        f"-o{option}" for option in (*options, *TRANSFER, "APT::Sandbox::User=root", "Dir::State::status=/dev/null")
    ]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program
            ["apt-get", "-q", *arguments, *command],  # noqa: S607
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"apt-get {command[0]} took longer than {seconds:.0f} s"
    return done.stderr.strip()


def store_package(package: Path, target: Path) -> UmlKernel:
    """Unpack a kernel and its modules into ``target``. Return the kernel.

    A kernel that does not run with this machine's glibc is adapted. ``target`` appears only when all files are
    complete. Raise LabImpossible if the kernel does not run on this machine.
    """
    unpacked = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _unpack(package, unpacked)
        kernel = uml_kernel.read_kernel(unpacked) or _adapt(unpacked)
        unpacked.rename(target)
        return replace(kernel, root=target)
    except subprocess.CalledProcessError as error:
        raise LabImpossible(f"{package.name} could not be unpacked: {error.stderr.strip()}") from error
    except OSError:
        stored = uml_kernel.read_kernel(target)  # another installation may have stored the same package first
        if stored is None:
            raise
        return stored
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack(package: Path, folder: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True, text=True)  # noqa: S603, S607
    shutil.rmtree(folder / "usr/share", ignore_errors=True)
    folder.chmod(0o755)


def _adapt(root: Path) -> UmlKernel:
    program, reason = root / uml_kernel.PROGRAM, ""
    try:
        program.write_bytes(glibc_names.use_older_names(program.read_bytes()))
    except ValueError as error:
        reason = f": {error}"
    kernel = uml_kernel.read_kernel(root)
    if kernel is None:
        raise LabImpossible(f"{PACKAGE}: its {program.name} does not run on this machine{reason}")
    return kernel


if __name__ == "__main__":
    sys.exit(main())
