"""The files and services of a lab's nodes. Pure.

The nodes are the elements of the topology, and the station, on which SBF runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from virtcloud.lab import addressing
from virtcloud.lab.fabric.plan import NodeService
from virtcloud.model.element import ElementKind, Host, Hypervisor, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

DRIVERS = "/run/libvirt-drivers"
DRIVER_LIBRARIES = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver"
AGENT_FILE = "/run/virtcloud/agent.toml"
AGENT_STATE = "/run/virtcloud/agent"
AGENT_SOCKET = "/run/virtcloud/agent.sock"
LLDP_SOCKET = "/run/lldpd.socket"
CACHE = "/var/cache/virtcloud/lab"
BOOT_SCRIPT = "/var/spool/rc.local"
"""A shell script on a node's disk.

If the script exists, it runs once after each boot, when all services have started.
"""
RUN_BOOT_SCRIPT = f"test ! -e {BOOT_SCRIPT} || test -e /run/booted || {{ sh {BOOT_SCRIPT} && touch /run/booted; }}"

SSHD_CONFIG = """\
ListenAddress {address}
HostKey /run/ssh/host_key
AuthorizedKeysFile /run/ssh/authorized
PidFile none
AllowUsers switch
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAcceptedAlgorithms ssh-ed25519
HostKeyAlgorithms ssh-ed25519
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 64
MaxSessions 64
"""

LIBVIRTD_CONFIG = """\
auth_unix_rw = "none"
auth_unix_ro = "none"
mdns_adv = 0
host_uuid = "{uuid}"
"""

QEMU_CONFIG = """\
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
namespaces = []
stdio_handler = "file"
remember_owner = 0
"""


@dataclass(frozen=True, slots=True)
class LldpAccount:
    """The user ID and group ID of lldpd's account on the machine.

    Nodes execute the machine's program lldpcli, which is setuid to this user ID. Therefore, lldpd's account on a node
    must have the same IDs.
    """

    user: int
    group: int


@dataclass(frozen=True, slots=True)
class LabMaterials:
    """Values for the plans of a lab on this machine: keys (as text), folders, and lldpd's account.

    If ``bare`` is true, the lab runs neither SBF nor agents.
    """

    state: str
    authorized_key: str
    host_keys: Mapping[str, str]
    visible_folders: tuple[str, ...] = ()
    bare: bool = False
    lldp: LldpAccount | None = None


PEOPLE: Final = "alice:x:1001:1001::/:/usr/sbin/nologin\nbob:x:1002:1002::/:/usr/sbin/nologin\n"
"""The accounts of users on gateways. A gateway accesses a user's files with the rights of the user's account."""


def base_files(hosts: str, lldp: LldpAccount | None = None, people: str = "") -> dict[str, str]:
    """Return the files of a node's /etc and home folder: accounts, name resolution, and settings of the login shell.

    ``hosts`` is the text of /etc/hosts. ``people`` contains the lines of /etc/passwd for users.
    """
    user = f"_lldpd:x:{lldp.user}:{lldp.group}::/run/lldpd:/usr/sbin/nologin\n" if lldp else ""
    return {
        "/run/etc/passwd": f"{user}{addressing.SWITCH_ACCOUNT}:x:0:0::/run/home:/bin/sh\n"
        "root:x:0:0::/run/home:/bin/sh\n"
        "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"
        "dnsmasq:x:105:65534::/:/usr/sbin/nologin\n"
        f"{people}"
        "libvirt-qemu:x:102:102::/:/usr/sbin/nologin\n",  # libvirtd looks this account up even if QEMU runs as root
        "/run/etc/group": "root:x:0:\nlibvirt-qemu:x:102:\nkvm:x:103:\nfrrvty:x:104:root\nnogroup:x:65534:\n"
        + (f"_lldpd:x:{lldp.group}:\n" if lldp else ""),
        "/run/etc/shadow": f"{addressing.SWITCH_ACCOUNT}:*:19000::::::\nroot:*:19000::::::\n",
        "/run/etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
        "/run/etc/hosts": hosts,
        "/run/etc/profile": "PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH\n",
        "/run/home/.hushlogin": "",
    }


def device_files(address: str, authorized: str, host_key: str) -> dict[str, str]:
    """Return the files of a device's sshd."""
    return {
        "/run/sshd/.keep": "",
        "/run/ssh/sshd_config": SSHD_CONFIG.format(address=address),
        "/run/ssh/authorized": authorized,
        "/run/ssh/host_key": host_key,
    }


def sshd_service(address: str) -> NodeService:
    """Return the service of a device's sshd. With option ``-r``, sshd does not execute itself for each connection."""
    argv = ("/usr/sbin/sshd", "-D", "-e", "-r", "-f", "/run/ssh/sshd_config")
    return NodeService("sshd", argv, ready=f"tcp:{address}:22")


def lldpd_service(ports: Iterable[str]) -> NodeService:
    """Return the service of an element's lldpd. lldpd uses only the element's ports."""
    argv = ("/usr/sbin/lldpd", "-d", "-u", LLDP_SOCKET, "-O", "/dev/null", "-I", ",".join(ports))
    return NodeService("lldpd", argv, ready=f"unix:{LLDP_SOCKET}")


def host_files(host: Host, number: int, state: str) -> dict[str, str]:
    """Return the files of a host's libvirtd and agent."""
    return {
        "/run/libvirt/.keep": "",
        "/run/lock/.keep": "",
        "/etc/libvirt/libvirtd.conf": LIBVIRTD_CONFIG.format(uuid=f"5bf00000-0000-4000-8000-{number:012x}"),
        "/etc/libvirt/qemu.conf": QEMU_CONFIG,
        "/var/log/libvirt/lxc/.keep": "",
        "/var/log/libvirt/qemu/.keep": "",
        AGENT_FILE: agent_config(host.name, host.hypervisors, state),
    }


def token_folder(state: str, element: str) -> str:
    """Return the folder of an agent's token. The path is the same on the machine and on the node."""
    return f"{state}/tokens/{element}"


def agent_config(element: str, hypervisors: Iterable[Hypervisor], state: str) -> str:
    """Return an agent's settings (TOML)."""
    uris = {Hypervisor.LXC: "lxc:///system", Hypervisor.QEMU: "qemu:///system"}
    lines = [
        f'element = "{element}"',
        f'sbf = "http://{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}"',
        f'token_file = "{token_folder(state, element)}/token"',
        f'images = "{state}/images"',
        f'state = "{AGENT_STATE}"',
        "[hypervisors]",
        *(f'{kind.value} = "{uris[kind]}"' for kind in hypervisors),
        "[guests]",
        'accelerator = "tcg"  # KVM may be unavailable where the lab runs',
        "confined = false",
        "stop_grace = 1",
        "[timing]",
        "retry_most = 2",
    ]
    return "\n".join(lines) + "\n"


def driver_binds(host: Host) -> tuple[tuple[str, str], ...]:
    """Return bind mounts of the libvirt drivers that a host needs. Further drivers would delay libvirtd's start."""
    files = [f"libvirt_driver_{kind.value}.so" for kind in host.hypervisors]
    return tuple((f"{DRIVER_LIBRARIES}/{file}", f"{DRIVERS}/{file}") for file in files)


def libvirtd_service() -> NodeService:
    """Return the service of a host's libvirtd."""
    return NodeService(
        "libvirtd",
        ("/usr/sbin/libvirtd", "--config", "/etc/libvirt/libvirtd.conf"),
        environment={"LIBVIRT_DRIVER_DIR": DRIVERS},
        ready="unix:/run/libvirt/libvirt-sock",
    )


def agent_service() -> NodeService:
    """Return the service of an agent. Its ``imports`` include the libraries that the agent's first call to SBF uses."""
    imports = ("virtcloud.agent.host_bootstrap", "httpcore", "encodings.idna")
    argv = ("virtcloud-agent", "--config", AGENT_FILE)
    return NodeService("agent", argv, module="virtcloud.agent.bootstrap", imports=imports, ready=f"unix:{AGENT_SOCKET}")


def sbf_service_of_lab(materials: LabMaterials) -> NodeService:
    """Return the service of SBF, which runs on the station. Its ``imports`` make each restart two seconds shorter."""
    return NodeService(
        "sbf",
        ("sbf", "serve", "--config", f"{materials.state}/sbf.toml"),
        module="sbf_service.__main__",
        imports=("sbf_service.bootstrap", "sbf_service.server", "netmiko"),
        environment={"HOME": materials.state},
        ready=f"tcp:{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}",
    )


def sbf_config(state: str, socket: str, timing: Mapping[str, float]) -> str:
    """Return SBF's settings (TOML)."""
    lines = [
        f'database = "sqlite:///{state}/sbf.db"',
        f'listen = "{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}"',
        "allow_plaintext = true  # only the lab uses this network",
        f'socket = "{socket}"',
        f"[credentials.{addressing.CREDENTIAL}]",
        f'username = "{addressing.SWITCH_ACCOUNT}"',
        f'key_file = "{state}/keys/switch"',
        f'known_hosts = "{state}/keys/known_hosts"',
    ]
    if timing:
        lines += ["[timing]", *(f"{name} = {value:g}" for name, value in timing.items())]
    return "\n".join(lines) + "\n"


AGENT_KINDS = (ElementKind.HOST, ElementKind.GATEWAY)


def elements_with_agents(topology: Topology) -> list[Name]:
    """Return the names of the elements that have an agent."""
    return [name for name, element in topology.elements.items() if kind_of(element) in AGENT_KINDS]
