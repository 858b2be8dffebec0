"""Prerequisites of a lab on its machine: programs, drivers, Python packages, rights and kernel features.

``lab up`` checks the prerequisites before any change; ``virtcloud doctor`` shows the results.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from virtcloud.lab import guest_kernel, lab_kernel, openvswitch
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.frr import FRR_PROGRAMS
from virtcloud.lab.lab_file import LabFile
from virtcloud.lab.network import is_fabric
from virtcloud.lab.node_services import DRIVER_LIBRARIES as DRIVER_FOLDER
from virtcloud.model.element import Hypervisor

REQUIRED_PROGRAMS = {
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "busybox": "busybox-static",
    "libvirtd": "libvirt-daemon",
    "virsh": "libvirt-clients",
    "pgrep": "procps",
    "tcpdump": "tcpdump",
}
LLDP_PROGRAMS = {"lldpd": "lldpd", "lldpcli": "lldpd"}
"""Needed only for a lab with ``lldp: true``."""
DRIVER_PACKAGES = {Hypervisor.LXC: "libvirt-daemon-driver-lxc", Hypervisor.QEMU: "libvirt-daemon-driver-qemu"}
QEMU_PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
FRR_PACKAGE = "frr"
PYTHON_PACKAGES = {
    "libvirt": "agent",
    "pyroute2": "agent",
    "fastapi": "sbf",
    "netmiko": "sbf",
    "sqlalchemy": "sbf",
    "uvicorn": "sbf",
}
"""A sample of packages from each extra of virtcloud. The other packages of an extra are installed together with
these.
"""
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_program(program: str) -> str | None:
    """Return the path of a program, or None."""
    return shutil.which(program, path=PROGRAM_PATH)


def has_driver(kind: Hypervisor) -> bool:
    """Return whether libvirt's driver of a hypervisor is installed."""
    return Path(DRIVER_FOLDER, f"libvirt_driver_{kind.value}.so").exists()


def check_prerequisites(lab: LabFile) -> None:
    """Raise LabImpossible with the prerequisites that this machine lacks, and the remedy."""
    if os.geteuid() != 0:
        raise LabImpossible("a lab needs root to create network namespaces: run the command with sudo")
    missing_packages = missing_modules()
    if missing_packages:
        raise LabImpossible(f"this Python lacks {', '.join(missing_packages)}: pip install 'virtcloud[lab]'")
    missing = sorted({*_missing_programs(lab), *_missing_routers(lab)})
    if missing:
        programs = ", ".join(name for name, _ in missing)
        packages = " ".join(sorted({package for _, package in missing}))
        raise LabImpossible(f"this machine lacks {programs}: apt-get install {packages}")


def missing_modules() -> list[str]:
    """Return the Python packages that a lab needs and that this Python lacks."""
    return [module for module in PYTHON_PACKAGES if importlib.util.find_spec(module) is None]


def _missing_programs(lab: LabFile) -> Iterator[tuple[str, str]]:
    programs = (
        REQUIRED_PROGRAMS
        | (LLDP_PROGRAMS if lab.lldp else {})
        | (openvswitch.OVS_PROGRAMS if openvswitch.ovs_switch_names(lab) else {})
    )
    yield from ((program, package) for program, package in programs.items() if find_program(program) is None)
    for kind in lab.hypervisors:
        if not has_driver(kind):
            yield f"libvirt's {kind.value} driver", DRIVER_PACKAGES[kind]
        if kind is Hypervisor.QEMU:
            yield from (
                (program, package) for program, package in QEMU_PROGRAMS.items() if find_program(program) is None
            )


def has_routers() -> bool:
    """Return whether FRR is installed. Without FRR, edges cannot use BGP."""
    return all(Path(FRR_PROGRAMS, name).exists() for name in ("zebra", "bgpd"))


def _missing_routers(lab: LabFile) -> Iterator[tuple[str, str]]:
    if any(is_fabric(transport) for transport in lab.transports) and not has_routers():
        yield "zebra and bgpd", FRR_PACKAGE


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """The result of a check. ``needed``: no lab can run without this prerequisite. ``remedy``: how to install it."""

    group: str
    name: str
    present: bool
    needed: bool = True
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All results, and the kernel in which a lab would run: ``direct``, ``uml``, or None if no lab can run."""

    findings: tuple[Prerequisite, ...]
    kernel: str | None

    @property
    def healthy(self) -> bool:
        """Return whether a lab can run here."""
        return self.kernel is not None and all(finding.present for finding in self.findings if finding.needed)


def diagnose() -> Diagnosis:
    """Check this machine. Kernel features are tested in temporary namespaces."""
    root = os.geteuid() == 0
    features = {feature.name: root and lab_kernel.has_feature(feature) for feature in lab_kernel.FEATURES}
    uml_obstacles = lab_kernel.find_uml_obstacles()
    kernel = "direct" if all(features.values()) else "uml" if not uml_obstacles else None
    return Diagnosis(
        (*_rights(root), *_kernel(features, uml_obstacles, kernel), *_programs(), *_python(), *_images()), kernel
    )


def _rights(root: bool) -> Iterator[Prerequisite]:
    yield Prerequisite("rights", "root", root, remedy="run the command with sudo")


def _kernel(features: dict[str, bool], uml_obstacles: list[str], kernel: str | None) -> Iterator[Prerequisite]:
    for name, is_present in features.items():
        remedy = "" if is_present else "User-mode Linux has this feature" if kernel == "uml" else "needs another kernel"
        yield Prerequisite("kernel", name, is_present, needed=kernel is None, remedy=remedy)
    yield Prerequisite(
        "kernel", "User-mode Linux", not uml_obstacles, needed=kernel is None, remedy="; ".join(uml_obstacles)
    )


def _programs() -> Iterator[Prerequisite]:
    for program, package in REQUIRED_PROGRAMS.items():
        yield Prerequisite("program", program, find_program(program) is not None, remedy=f"apt-get install {package}")
    for program, package in (LLDP_PROGRAMS | openvswitch.OVS_PROGRAMS).items():
        present = find_program(program) is not None
        yield Prerequisite("program", program, present, needed=False, remedy=f"apt-get install {package}")
    for kind, package in DRIVER_PACKAGES.items():
        present = has_driver(kind)
        needed = kind == "lxc"
        yield Prerequisite(
            "program", f"libvirt {kind.value} driver", present, needed, remedy=f"apt-get install {package}"
        )
    yield Prerequisite("program", "zebra and bgpd", has_routers(), False, f"apt-get install {FRR_PACKAGE}")


def _python() -> Iterator[Prerequisite]:
    for module, extra in PYTHON_PACKAGES.items():
        present = module not in missing_modules()
        yield Prerequisite("python", module, present, remedy=f"pip install 'virtcloud[{extra}]'")


def _images() -> Iterator[Prerequisite]:
    yield Prerequisite(
        "image",
        "kernel for QEMU guests",
        guest_kernel.find_guest_kernel() is not None,
        needed=False,
        remedy="a lab with QEMU guests downloads the kernel (27 MB, apt-get download)",
    )
