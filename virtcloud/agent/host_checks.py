"""Checks of a host for ``virtcloud doctor --host``. The checks do not change the host."""

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from virtcloud.agent.bootstrap import sbf_client
from virtcloud.agent.file_servers.nfs_servers import find_ganesha
from virtcloud.agent.files import describe_os_error
from virtcloud.agent.gateway.ssh_gateway import describe_sshd
from virtcloud.agent.gateway.vpn_checks import list_vpn_checks
from virtcloud.agent.guests.containment_checks import (
    check_control_groups,
    check_ids,
    check_user_namespaces,
    describe_qemu_confinement,
)
from virtcloud.agent.guests.images import list_images
from virtcloud.agent.host_services.dnsmasq_servers import describe_dnsmasq
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.client.agent_client import AgentClient
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, VirtcloudError

ANSWER_S = 5.0
CAPABILITIES_S = 60.0  # before libvirt answers, it may start each QEMU program
MIN_FREE_GIB, MAX_CLOCK_OFFSET_S = 1, 30
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
INSTALL = "pip install 'virtcloud[agent]'"


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of one check. If the check is not ``required``, its failure is only a warning."""

    group: str
    name: str
    ok: bool
    observation: str
    remedy: str = ""
    required: bool = True


def check_host(config: Path) -> tuple[HostCheck, ...]:
    """Check this host with the agent's settings in the file ``config``.

    Return the results in the order in which the checks ran. A failed check raises no error. If the settings cannot be
    read, the later checks do not run.
    """
    return tuple(_checks(config))


def _checks(config: Path) -> Iterator[HostCheck]:
    is_root = os.geteuid() == 0
    yield HostCheck(
        "rights", "root", is_root, "root" if is_root else f"user {os.geteuid()}", "run this command as root"
    )
    try:
        settings = read_settings(config)
    except VirtcloudError as error:
        observation = str(error).replace(f"{config}: ", "")
        yield HostCheck(
            "settings",
            str(config),
            ok=False,
            observation=observation,
            remedy="correct the file, or name another file with --config",
        )
        return
    yield HostCheck("settings", str(config), ok=True, observation=f"element {settings.element or 'none'}")
    missing = [module for module in ("libvirt", "pyroute2") if find_spec(module) is None]
    yield HostCheck(
        "python", "libvirt, pyroute2", not missing, f"missing: {', '.join(missing)}" if missing else "", INSTALL
    )
    yield from _folders(settings)
    if not missing:
        yield from _kernel(settings)
        yield from _hypervisors(settings)
    if settings.hypervisors:
        yield _attempt("services", "DHCP, DNS and metadata for guests", describe_dnsmasq, required=False)
    yield from _sbf(settings, checks_uplinks=not missing)
    yield _agent(settings)


def _attempt(
    group: str, name: str, attempt: Callable[[], str], remedy: str = "", *, required: bool = True
) -> HostCheck:
    try:
        return HostCheck(group, name, ok=True, observation=attempt(), required=required)
    except VirtcloudError as error:
        return HostCheck(group, name, ok=False, observation=str(error), remedy=remedy, required=required)
    except OSError as error:
        return HostCheck(group, name, ok=False, observation=describe_os_error(error), remedy=remedy, required=required)


def _folders(settings: AgentSettings) -> Iterator[HostCheck]:
    yield _attempt(
        "folders",
        f"images {settings.images}",
        lambda: _count_images(settings.images),
        "create the folder, or set 'images' in the settings",
    )
    try:
        broken = [image for image in list_images(settings.images) if image.trouble]
    except (VirtcloudError, OSError):
        broken = []
    for image in broken:
        yield HostCheck("folders", f"image {image.name}", ok=False, observation=image.trouble or "", required=False)
    remedy = f"free {MIN_FREE_GIB} GiB in this folder, or set 'state' to another folder"
    yield _attempt("folders", f"state {settings.state}", lambda: _free_space(settings.state), remedy)
    remedy = (
        f"chown root: {settings.state}; chmod 755 {settings.state} (otherwise, other users could make the agent change "
        "this host)"
    )
    yield _attempt(
        "folders", "only root changes the state", lambda: _describe_owner(settings.state), remedy, required=False
    )


def _count_images(folder: Path) -> str:
    return f"{len(list_images(folder))} images"


def _free_space(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK, effective_ids=True):
        raise Refused(f"{existing} is not writable")
    free = shutil.disk_usage(existing).free >> 30
    if free < MIN_FREE_GIB:
        raise Refused(f"{free} GiB free, expected at least {MIN_FREE_GIB} GiB for guests' disks")
    return f"{free} GiB free"


def _describe_owner(folder: Path) -> str:
    if not folder.exists():
        return "the agent creates the folder"
    status = folder.stat()
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if owner not in {0, os.geteuid()} or mode & OTHERS_WRITE:
        raise Refused(
            f"expected owner root and no write permission for group and others, found user ID {owner}, mode {mode:04o}"
        )
    return f"user ID {owner}, mode {mode:04o}"


def _kernel(settings: AgentSettings) -> Iterator[HostCheck]:
    from virtcloud.agent.network import kernel_checks  # noqa: PLC0415 - pyroute2 may be missing

    remedy = "modprobe 8021q bridge veth, and list these modules in /etc/modules-load.d/virtcloud.conf"
    yield _attempt("kernel", "802.1Q interfaces, bridges, veth", kernel_checks.check_interfaces, remedy)
    filters = kernel_checks.list_packet_filter_sysctls()
    accepted = settings.bridged_frames_filtered == "accept"
    observation = f"{', '.join(filters)} set" + (" (accepted by the settings)" if accepted else "") if filters else ""
    yield HostCheck(
        "kernel",
        "bridged frames stay out of the packet filter",
        accepted or not filters,
        observation,
        f"sysctl -w {' '.join(f'{sysctl}=0' for sysctl in filters)}; write the same values to /etc/sysctl.d/ "
        "(Docker sets these sysctls to 1)",
    )
    if settings.guests.filters == "strict":
        remedy = 'install the package that the observation names, or set filters = "off" under [guests] in the settings'
        yield _attempt("kernel", "filters of guests", kernel_checks.check_filters, remedy)


def _hypervisors(settings: AgentSettings) -> Iterator[HostCheck]:
    checks = {kind: _libvirt(kind, uri) for kind, uri in settings.hypervisors.items()}
    yield from checks.values()
    if Hypervisor.QEMU in checks and checks[Hypervisor.QEMU].ok:
        remedy = 'remove user = "root" from /etc/libvirt/qemu.conf, and restart libvirtd'
        uri = settings.hypervisors[Hypervisor.QEMU]
        yield _attempt("containment", "QEMU is not root", partial(_qemu_user, uri), remedy, required=False)
    if Hypervisor.LXC in settings.hypervisors:
        yield from _containers(settings)
    if Hypervisor.QEMU in settings.hypervisors:
        program = shutil.which("qemu-img")
        yield HostCheck(
            "libvirt", "qemu-img", program is not None, program or "not found", "apt-get install qemu-utils"
        )


def _libvirt(kind: Hypervisor, uri: str) -> HostCheck:
    from virtcloud.agent.guests.hypervisor import (  # noqa: PLC0415 - libvirt may be missing
        LIBVIRTD_REMEDY,
        LibvirtDeadlines,
        LibvirtHypervisor,
    )

    remedy = "install libvirt's drivers of these hypervisors, and start libvirtd (systemctl status libvirtd)"
    with closing(LibvirtHypervisor(uri, LibvirtDeadlines(read_s=ANSWER_S))) as hypervisor:
        check = _attempt("libvirt", f"{kind} at {uri}", lambda: f"{len(hypervisor.list_domains())} domains", remedy)
    return replace(check, observation=check.observation.removesuffix(LIBVIRTD_REMEDY))


def _qemu_user(uri: str) -> str:
    from virtcloud.agent.guests.hypervisor import LibvirtDeadlines, LibvirtHypervisor  # noqa: PLC0415 - libvirt may be missing

    with closing(LibvirtHypervisor(uri, LibvirtDeadlines(read_s=CAPABILITIES_S))) as hypervisor:
        return describe_qemu_confinement(hypervisor.capabilities())


def _containers(settings: AgentSettings) -> Iterator[HostCheck]:
    remedy = "sysctl -w user.max_user_namespaces=10000"
    yield _attempt("containment", "user namespaces", check_user_namespaces, remedy)
    remedy = "under [guests] in the agent's settings, set first_id to a value above the granted IDs"
    yield _attempt("containment", "user IDs", lambda: check_ids(settings.guests.first_id), remedy, required=False)
    remedy = "boot with control groups of version 2: systemd.unified_cgroup_hierarchy=1"
    yield _attempt("containment", "limits", check_control_groups, remedy, required=False)


def _sbf(settings: AgentSettings, *, checks_uplinks: bool) -> Iterator[HostCheck]:
    if settings.element is None:
        return
    try:
        with sbf_client(settings, settings.token_file, ANSWER_S) as sbf:
            document = sbf.wanted(str(settings.element))
            clock = _attempt("sbf", "clock", lambda: _clock(sbf), "synchronize both clocks: timedatectl set-ntp true")
    except VirtcloudError as error:
        yield HostCheck("sbf", settings.sbf, ok=False, observation=str(error))
        return
    revisions = f"revision {document.revision} wanted, {document.confirmed_revision} confirmed"
    yield HostCheck("sbf", settings.sbf, ok=True, observation=f"element {settings.element}: {revisions}")
    yield clock
    wanted = document.wanted
    if wanted.vpn is not None:
        for name, check in list_vpn_checks(wanted.vpn, settings.state / "vpn").items():
            yield _attempt("vpn", name, check)
    if wanted.ssh is not None:
        yield _attempt("ssh", "sshd", describe_sshd)
    if any(segment.nfs for segment in wanted.segments):
        yield _attempt("nfs", "NFS-Ganesha", find_ganesha)
    if checks_uplinks:
        yield from _uplinks({segment.port for segment in wanted.segments})


def _clock(sbf: AgentClient) -> str:
    ahead = (datetime.now(UTC) - sbf.clock()).total_seconds()
    offset = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} SBF's"
    if abs(ahead) > MAX_CLOCK_OFFSET_S:
        raise Refused(offset)
    return offset


def _uplinks(ports: Iterable[str]) -> Iterator[HostCheck]:
    from virtcloud.agent.network.kernel_checks import check_uplink  # noqa: PLC0415 - pyroute2 may be missing

    for port in sorted(ports):
        yield _attempt("uplinks", port, partial(check_uplink, port))


def _agent(settings: AgentSettings) -> HostCheck:
    def connect() -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(settings.socket))
        return f"listens at {settings.socket}"

    return _attempt("agent", "running", connect, "systemctl start virtcloud-agent", required=False)
