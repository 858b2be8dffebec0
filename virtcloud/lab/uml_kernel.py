"""The User-mode Linux kernels of this machine: Debian's installed package, or a newer package that the lab unpacked.

Versions from Linux 6.16 on, which Debian 12 and 13 lack, can use seccomp instead of ptrace to intercept system calls,
and need half of the processor time. Therefore :mod:`virtcloud.lab.uml_package` downloads a newer package.
"""

import contextlib
import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from virtcloud.lab.node_services import CACHE

INSTALLED = Path("/")
UNPACKED = Path(CACHE, "user-mode-linux")
"""The folder that contains a folder for each unpacked package. All labs of this machine use these packages."""
PROGRAM = Path("usr/bin/linux.uml")
MODULES = Path("usr/lib/uml")
WITH_SECCOMP = (6, 16)
VERSION = re.compile(r"(\d+)\.(\d+)")
VERSION_S = 10


@dataclass(frozen=True, slots=True)
class UmlKernel:
    """A User-mode Linux kernel that runs on this machine. ``root`` is the root folder of its package."""

    root: Path
    release: str

    @property
    def program(self) -> Path:
        """Return the path of the kernel's program."""
        return self.root / PROGRAM

    @property
    def modules(self) -> Path:
        """Return the folder that contains ``modules/RELEASE``."""
        return self.root / MODULES

    @property
    def version(self) -> tuple[int, int]:
        """Return the first two numbers of the kernel's release."""
        found = VERSION.match(self.release)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def uses_seccomp(self) -> bool:
        """Return whether the kernel can run programs without ptrace."""
        return self.version >= WITH_SECCOMP


def find_uml_kernel() -> UmlKernel | None:
    """Return the kernel for labs, or None if this machine has no kernel that runs.

    Return the installed kernel if it can use seccomp, otherwise the newest of all kernels.
    """
    installed = read_kernel(INSTALLED)
    if installed is not None and installed.uses_seccomp:
        return installed
    unpacked = [read_kernel(root) for root in sorted(UNPACKED.glob("[0-9]*"))]
    kernels = [kernel for kernel in (installed, *unpacked) if kernel is not None]
    return max(kernels, key=lambda kernel: kernel.version, default=None)


def read_kernel(root: Path) -> UmlKernel | None:
    """Return the kernel below ``root``.

    Return None if the kernel or its modules are missing, or if the kernel does not run on this machine.
    """
    program = root / PROGRAM
    if not program.exists():
        return None
    release = _read_release(program, program.stat().st_mtime_ns)
    return UmlKernel(root, release) if (root / MODULES / "modules" / release).is_dir() else None


@functools.cache
def _read_release(program: Path, _modified: int) -> str:
    """Return "none" if the kernel does not run on this machine."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [str(program), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=VERSION_S)  # noqa: S603
        if done.returncode == 0 and VERSION.match(done.stdout):
            return done.stdout.strip()
    return "none"
