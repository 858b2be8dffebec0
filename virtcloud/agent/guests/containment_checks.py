"""Checks of the host's means to isolate guests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from virtcloud.agent.guests.id_ranges import END
from virtcloud.model.errors import Refused

GRANTED_IDS = Path("/etc/subuid"), Path("/etc/subgid")
MAX_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
NEEDED_CONTROLLERS: Final = ("cpu", "memory", "pids")
DAC: Final = "dac"
"""libvirt's security model that sets the user of QEMU and the owners of QEMU's files."""


def check_user_namespaces() -> str:
    """Raise Refused if the kernel cannot create user namespaces. Return ""."""
    try:
        most = int(MAX_NAMESPACES.read_text())
    except OSError as error:
        raise Refused(f"the kernel has no user namespaces: {MAX_NAMESPACES}: {error.strerror}") from error
    if most == 0:
        raise Refused(f"{MAX_NAMESPACES} is 0")
    return ""


def check_control_groups() -> str:
    """Return the names of the cgroup controllers that limit containers. Raise Refused if one of them is missing."""
    try:
        found = CONTROLLERS.read_text().split()
    except OSError as error:
        raise Refused(f"control groups of version 2 are not mounted: {CONTROLLERS}: {error.strerror}") from error
    missing = [controller for controller in NEEDED_CONTROLLERS if controller not in found]
    if missing:
        raise Refused(f"controllers of control groups are missing: {', '.join(missing)}")
    return ", ".join(NEEDED_CONTROLLERS)


def check_ids(first_id: int, files: Iterable[Path] = GRANTED_IDS) -> str:
    """Return a text with the range of containers' IDs.

    Raise Refused if one of ``files``, such as /etc/subuid, grants some of these IDs to an account.
    """
    for path in files:
        lines = path.read_text().splitlines() if path.exists() else []
        for owner, first, count in (line.split(":") for line in lines if line.count(":") == 2):  # noqa: PLR2004 - subuid(5)
            if not (first.isdecimal() and count.isdecimal()):
                continue  # a comment, or a line that the programs of the package "shadow" also ignore
            if int(first) < END and first_id < int(first) + int(count):
                raise Refused(
                    f"{path} grants {owner} {count} IDs from {first}, but containers use the IDs from {first_id} on"
                )
    return f"{first_id}-{END - 1}"


def describe_qemu_confinement(capabilities: str) -> str:
    """Return a text with QEMU's user and libvirt's security drivers.

    ``capabilities`` are libvirt's capabilities (XML). Raise Refused if QEMU runs as root, or if the capabilities do not
    contain QEMU's user.
    """
    models = {model.findtext("model"): model for model in ET.fromstring(capabilities).iter("secmodel")}  # noqa: S314 - libvirt's
    labels = [label.text or "" for label in models[DAC].iter("baselabel")] if DAC in models else []
    users = sorted({label.partition(":")[0].lstrip("+") for label in labels})
    if not users or "0" in users:
        raise Refused("QEMU runs as root: a guest that escapes from QEMU has all rights on this host")
    drivers = sorted(model for model in models if model not in {None, DAC, "none"})
    return f"user {', '.join(users)}; security driver: {', '.join(str(driver) for driver in drivers) or 'none'}"
