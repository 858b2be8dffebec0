"""Prerequisites of a lab on its machine: programs, drivers, Python packages, rights and kernel features.

``lab up`` checks the prerequisites before any change; ``virtcloud doctor`` checks them and prints the results.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from virtcloud.lab import guest_kernel, lab_kernel, openvswitch, uml_kernel
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.frr import FRR_PROGRAMS
from virtcloud.lab.lab_file import LabFile
from virtcloud.lab.network import is_fabric
from virtcloud.lab.node_services import DRIVER_LIBRARIES as DRIVER_FOLDER
from virtcloud.model.element import Gateway, Hypervisor

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
    "nft": "nftables",
}
LLDP_PROGRAMS = {"lldpd": "lldpd", "lldpcli": "lldpd"}
DRIVER_PACKAGES = {Hypervisor.LXC: "libvirt-daemon-driver-lxc", Hypervisor.QEMU: "libvirt-daemon-driver-qemu"}
QEMU_PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
FRR_PACKAGE = "frr"
VPN_PROGRAMS = {"openvpn": "openvpn"}
NFS_PROGRAMS = {"ganesha.nfsd": "nfs-ganesha nfs-ganesha-vfs"}
IMAGE_PROGRAMS = {"mmdebstrap": "mmdebstrap"}
PYTHON_PACKAGES = {
    "libvirt": "agent",
    "pyroute2": "agent",
    "fastapi": "sbf",
    "netmiko": "sbf",
    "sqlalchemy": "sbf",
    "uvicorn": "sbf",
}
"""The Python packages that the checks look for, and the extra of virtcloud that installs each package.

The checks need not look for every package of an extra, because pip installs all packages of an extra together.
"""
INSTALL = "apt-get install "
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_program(program: str) -> str | None:
    """Return the path of a program, or None."""
    return shutil.which(program, path=PROGRAM_PATH)


def has_driver(kind: Hypervisor) -> bool:
    """Return whether libvirt's driver of a hypervisor is installed."""
    return Path(DRIVER_FOLDER, f"libvirt_driver_{kind.value}.so").exists()


def check_prerequisites(lab: LabFile) -> None:
    """Raise LabImpossible if this machine lacks prerequisites. The message names the prerequisites and the remedy."""
    if os.geteuid() != 0:
        raise LabImpossible("a lab needs root to create network namespaces: run the command with sudo")
    missing_packages = missing_modules()
    if missing_packages:
        remedy = "pip install 'virtcloud[lab]'; or, in a clone of virtcloud: make setup"
        raise LabImpossible(f"this Python lacks {', '.join(missing_packages)}: {remedy}")
    missing = sorted(program for program in _list_programs(lab) if program.needed and not program.present)
    if missing:
        programs = ", ".join(program.name for program in missing)
        packages = " ".join(sorted({program.remedy.removeprefix(INSTALL) for program in missing}))
        raise LabImpossible(f"this machine lacks {programs}: {INSTALL}{packages}")


def missing_modules() -> list[str]:
    """Return the Python packages that a lab needs and that this Python lacks."""
    return [module for module in PYTHON_PACKAGES if importlib.util.find_spec(module) is None]


def has_routers() -> bool:
    """Return whether FRR is installed. Without FRR, edges cannot use BGP."""
    return all(Path(FRR_PROGRAMS, name).exists() for name in ("zebra", "bgpd"))


@dataclass(frozen=True, slots=True, order=True)
class Prerequisite:
    """The result of one check.

    ``needed`` is true if the lab cannot run without this prerequisite. If the check is for no particular lab,
    ``needed`` refers to a minimal lab with LXC hosts. ``remedy`` states how to provide a missing prerequisite.
    """

    group: str
    name: str
    present: bool
    needed: bool = True
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks, and the kernel in which a lab would run.

    ``kernel`` is ``direct`` (this machine's kernel), ``uml`` (User-mode Linux), or None if neither kernel can run a
    lab.
    """

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
    kernel_findings = _kernel(features, uml_obstacles, kernel)
    return Diagnosis((*_rights(root), *kernel_findings, *_list_programs(None), *_python(), *_images()), kernel)


def _rights(root: bool) -> Iterator[Prerequisite]:
    yield Prerequisite("rights", "root", root, remedy="run the command with sudo")


def _kernel(features: dict[str, bool], uml_obstacles: list[str], kernel: str | None) -> Iterator[Prerequisite]:
    for name, is_present in features.items():
        remedy = "" if is_present else "User-mode Linux has this feature" if kernel == "uml" else "needs another kernel"
        yield Prerequisite("kernel", name, is_present, needed=kernel is None, remedy=remedy)
    yield Prerequisite(
        "kernel", "User-mode Linux", not uml_obstacles, needed=kernel is None, remedy="; ".join(uml_obstacles)
    )
    uml = uml_kernel.find_uml_kernel()
    yield Prerequisite(
        "kernel",
        "User-mode Linux with seccomp",
        uml is not None and uml.uses_seccomp,
        needed=False,
        remedy="'make setup' downloads this kernel; a lab then needs half as much processor time",
    )


def _list_programs(lab: LabFile | None) -> Iterator[Prerequisite]:
    """Yield the results for all programs and drivers.

    Without ``lab``, a minimal lab with LXC hosts determines ``needed``.
    """
    hypervisors = (Hypervisor.LXC,) if lab is None else lab.hypervisors
    groups = (
        (REQUIRED_PROGRAMS, True),
        (LLDP_PROGRAMS, lab is not None and lab.lldp),
        (openvswitch.OVS_PROGRAMS, lab is not None and bool(openvswitch.ovs_switch_names(lab))),
        (VPN_PROGRAMS, lab is not None and any(gateway.vpn for gateway in _gateways(lab))),
        (NFS_PROGRAMS, lab is not None and any(gateway.nfs for gateway in _gateways(lab))),
        (QEMU_PROGRAMS, Hypervisor.QEMU in hypervisors),
        (IMAGE_PROGRAMS, lab is not None and bool(lab.images)),
    )
    for programs, needed in groups:
        for name, package in programs.items():
            yield _describe_program(name, package, find_program(name) is not None, needed=needed)
    for kind, package in DRIVER_PACKAGES.items():
        name, needed = f"libvirt's {kind.value} driver", kind in hypervisors
        yield _describe_program(name, package, has_driver(kind), needed=needed)
    needs_routers = lab is not None and any(map(is_fabric, lab.transports))
    yield _describe_program("zebra and bgpd", FRR_PACKAGE, has_routers(), needed=needs_routers)


def _gateways(lab: LabFile) -> Iterator[Gateway]:
    return (gateway for site in lab.sites for gateway in site.gateways)


def _describe_program(name: str, package: str, present: bool, *, needed: bool) -> Prerequisite:
    return Prerequisite("program", name, present, needed, INSTALL + package)


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
