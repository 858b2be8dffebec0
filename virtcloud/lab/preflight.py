"""What must be there before a lab is started; every complaint comes before anything is changed."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from virtcloud.lab import openvswitch
from virtcloud.lab.backbone import is_fabric
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.file import LabFile
from virtcloud.lab.frr import PROGRAMS
from virtcloud.lab.services import DRIVER_LIBRARIES as DRIVER_FOLDER
from virtcloud.model.element import Hypervisor

PACKAGES = {
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
LLDP = {"lldpd": "lldpd", "lldpcli": "lldpd"}
"""Only for a lab that says ``lldp: true``."""
DRIVERS = {Hypervisor.LXC: "libvirt-daemon-driver-lxc", Hypervisor.QEMU: "libvirt-daemon-driver-qemu"}
QEMU = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
ROUTERS = "frr"
PYTHON_PACKAGES = {
    "libvirt": "agent",
    "pyroute2": "agent",
    "fastapi": "sbf",
    "netmiko": "sbf",
    "sqlalchemy": "sbf",
    "uvicorn": "sbf",
}
"""Some of each extra of ours: what else it has came with them."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """Find a program where the lab looks for it."""
    return shutil.which(program, path=PATH)


def has_driver(kind: Hypervisor) -> bool:
    """Say whether libvirt's driver for a hypervisor is installed."""
    return Path(DRIVER_FOLDER, f"libvirt_driver_{kind.value}.so").exists()


def check(lab: LabFile) -> None:
    """Raise :class:`LabImpossible` that names everything this machine lacks, and how to get it."""
    if os.geteuid() != 0:
        raise LabImpossible("the lab makes network namespaces and mounts: run it as root, for instance with sudo")
    absent = missing_modules()
    if absent:
        raise LabImpossible(f"this Python lacks {', '.join(absent)}: pip install 'virtcloud[lab]'")
    missing = sorted({*_missing(lab), *_missing_routers(lab)})
    if missing:
        programs = ", ".join(name for name, _ in missing)
        packages = " ".join(sorted({package for _, package in missing}))
        raise LabImpossible(f"this machine lacks {programs}: apt-get install {packages}")


def missing_modules() -> list[str]:
    """Name the Python packages that a lab needs and this Python lacks."""
    return [module for module in PYTHON_PACKAGES if importlib.util.find_spec(module) is None]


def _missing(lab: LabFile) -> Iterator[tuple[str, str]]:
    wanted = PACKAGES | (LLDP if lab.lldp else {}) | (openvswitch.PROGRAMS if openvswitch.names(lab) else {})
    yield from ((program, package) for program, package in wanted.items() if find(program) is None)
    for kind in lab.hypervisors:
        if not has_driver(kind):
            yield f"libvirt's {kind.value} driver", DRIVERS[kind]
        if kind is Hypervisor.QEMU:
            yield from ((program, package) for program, package in QEMU.items() if find(program) is None)


def has_routers() -> bool:
    """Say whether FRR is installed, without which no edge speaks BGP."""
    return all(Path(PROGRAMS, name).exists() for name in ("zebra", "bgpd"))


def _missing_routers(lab: LabFile) -> Iterator[tuple[str, str]]:
    if any(is_fabric(one) for one in lab.transports) and not has_routers():
        yield "zebra and bgpd", ROUTERS
