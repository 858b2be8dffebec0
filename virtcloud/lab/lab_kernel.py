"""The choice of the lab's kernel (this machine's kernel, or User-mode Linux), and the start of User-mode Linux."""

import contextlib
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from virtcloud.lab.addressing import FABRIC_ADDRESS, FABRIC_PORT
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.uml_kernel import PROGRAM, UmlKernel, find_uml_kernel

MEMORY = "3G"
BENCHMARKS = ("raid6_init", "raid6_select_algo")
"""Functions that User-mode Linux skips at its start: they would test algorithms of RAID 6 for 0.6 s."""
MISSING = "User-mode Linux is missing: apt-get install user-mode-linux"


@dataclass(frozen=True, slots=True)
class KernelFeature:
    """A kernel feature that the lab needs. ``commands`` test the feature in a new network namespace."""

    name: str
    commands: tuple[str, ...]


FEATURES = (
    KernelFeature("veth pairs", ("ip link add name t0 type veth peer name t1",)),
    KernelFeature(
        "802.1Q interfaces",
        ("ip link add name t0 type veth peer name t1", "ip link add link t0 name t0.2 type vlan id 2"),
    ),
    KernelFeature("VLAN-aware bridges", ("ip link add name t2 type bridge vlan_filtering 1 vlan_default_pvid 0",)),
    KernelFeature("802.1ad bridges", ("ip link add name t2 type bridge vlan_filtering 1 vlan_protocol 802.1ad",)),
    KernelFeature(
        "netem (latency)", ("ip link add name t0 type veth peer name t1", "tc qdisc add dev t0 root netem delay 1ms")
    ),
)


def missing_features() -> list[KernelFeature]:
    """Return the features that the machine's kernel lacks. Each feature is tested in a temporary network namespace."""
    return [feature for feature in FEATURES if not has_feature(feature)]


def has_feature(feature: KernelFeature) -> bool:
    """Return whether the machine's kernel has a feature.

    Also return False if the test cannot run, for example without root's rights.
    """
    command = ["unshare", "--net", "sh", "-c", " && ".join(feature.commands)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def find_uml_obstacles() -> list[str]:
    """Return the reasons why User-mode Linux cannot run on this machine, or an empty list."""
    if platform.machine() != "x86_64":
        return [f"User-mode Linux runs on x86_64 only, but this machine is {platform.machine()}"]
    obstacles, kernel = [], find_uml_kernel()
    if kernel is None:
        obstacles.append(MISSING)
    if not Path("/bin/busybox").exists():
        obstacles.append("busybox is missing: apt-get install busybox-static")
    if not Path("/dev/net/tun").exists():
        obstacles.append("/dev/net/tun is missing: modprobe tun")
    if kernel is not None and needs_preload(kernel) and find_compiler() is None:
        obstacles.append("User-mode Linux needs a C compiler for this processor: apt-get install gcc")
    return obstacles


def require_uml_kernel() -> UmlKernel:
    """Return the User-mode Linux kernel of a lab. Raise LabImpossible if this machine has no such kernel."""
    kernel = find_uml_kernel()
    if kernel is None:
        raise LabImpossible(f"no lab can run here: {MISSING}")
    return kernel


def choose_kernel(requested: str | None = None) -> str:
    """Return the lab's kernel: ``direct`` or ``uml``. If ``requested`` is None, prefer ``direct``.

    Raise LabImpossible with the reasons if the requested kernel cannot run the lab. Without a request, raise
    LabImpossible if neither of the two kernels can run the lab.
    """
    missing = [] if requested == "uml" else missing_features()
    if not missing and requested != "uml":
        return "direct"
    obstacles = find_uml_obstacles() if requested != "direct" else ["User-mode Linux was not requested"]
    if not obstacles:
        return "uml"
    names = ", ".join(feature.name for feature in missing)
    lacks = f"this machine's kernel lacks: {names}; " if names else ""
    raise LabImpossible(f"no lab can run here: {lacks}{'; '.join(obstacles)}")


def needs_preload(kernel: UmlKernel) -> bool:
    """Return whether ``kernel`` needs the library of `preload_library`.

    Without the library, a kernel without seccomp cannot save the extended state of a processor with AMX.
    """
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
    return not kernel.uses_seccomp and "amx_tile" in flags.split()


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return shutil.which("gcc") or shutil.which("cc")


def preload_library(kernel: UmlKernel, folder: Path) -> str:
    """Build a library by which a kernel without seccomp avoids most reads and writes of the extended processor state.

    Return the path, or "" if the kernel uses seccomp. If the build fails, raise LabImpossible for a kernel that needs
    the library, and return "" for other kernels.
    """
    if kernel.uses_seccomp:
        return ""
    source = resources.files("virtcloud.lab.fabric").joinpath("xstate.c").read_text(encoding="utf-8")
    library = folder / "xstate.so"
    command = [find_compiler() or "gcc", "-O3", "-fPIC", "-shared", "-nostdlib", "-fno-builtin"]
    command += ["-x", "c", "-o", str(library), "-"]
    try:
        subprocess.run(command, input=source, text=True, capture_output=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        if needs_preload(kernel):
            reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise LabImpossible(f"could not build {library.name} for User-mode Linux: {reason}") from error
        return ""
    return str(library)


def uml_command(kernel: UmlKernel, state: Path, init: Path) -> tuple[str, ...]:
    """Return the command that boots User-mode Linux on the machine's own file tree.

    The command binds User-mode Linux to one processor. A second processor would not help, because a program waits
    during its system calls. The switch between the program and the kernel's process takes a third less time on one
    processor.
    """
    processor = choose_processor(os.sched_getaffinity(0), _bound_processors())
    return (
        *("taskset", "-c", str(processor)),
        str(kernel.program),
        *(("seccomp=auto",) if kernel.uses_seccomp else ()),
        f"mem={MEMORY}",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        f"init={init}",
        f"uml_dir={state}/uml/",
        "vec0:transport=tap,ifname=kernel0,depth=128,gro=1",
        "con=null",
        "con0=null,fd:1",
        "pty.legacy_count=0",
        f"initcall_blacklist={','.join(BENCHMARKS)}",
        "quiet",
    )


def choose_processor(allowed: Iterable[int], used: Iterable[int]) -> int:
    """Return the processor in ``allowed`` that occurs least often in ``used``."""
    counts = Counter(used)
    return min(allowed, key=lambda processor: (counts[processor], processor))


def _bound_processors() -> Iterator[int]:
    """Yield the processor of each User-mode Linux process that is bound to one processor, for all labs."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if (folder / "comm").read_text(errors="replace").strip() == PROGRAM.name:
                bound = os.sched_getaffinity(int(folder.name))
                if len(bound) == 1:
                    yield from bound


def init_text(python: str, settings: Path, visible_folders: Sequence[str], paths: Sequence[str]) -> str:
    """Return the text of User-mode Linux's first program: a script that executes the fabric."""
    command = " ".join(f"'{word}'" for word in (python, "-m", "virtcloud.lab.fabric", settings, *visible_folders))
    search_path = os.pathsep.join(paths)
    return (
        "#!/bin/busybox sh\nexport PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        f"export PYTHONPATH='{search_path}' HOME=/run/home LANG=C.UTF-8\ncd /\nexec {command} </dev/null\n"
    )


def relay_address() -> str:
    """Return the address where the fabric in User-mode Linux listens."""
    return f"{FABRIC_ADDRESS}:{FABRIC_PORT}"
