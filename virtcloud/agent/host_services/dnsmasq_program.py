"""Starts dnsmasq in a new network namespace, without the host's privileges.

The agent runs `main` with ``python -I -S``, so the program uses only the standard library and starts quickly. The steps
are:

1. create a network namespace, and print ``apart`` and the process ID
2. read the specification, which is one line of JSON
3. configure the interface, drop the privileges, and execute dnsmasq, which keeps the process ID of step 1

dnsmasq runs as a separate user. dnsmasq keeps the capabilities to bind ports below 1024, to send raw packets, and to
change neighbour entries of its interface. The capabilities are valid only in dnsmasq's network namespace. The namespace
forwards no packets, and ends with its last process.

If the specification has neighbours, the program also binds each guest address to one guest (`guest_identity`).

dnsmasq writes errors to its standard output, and closes this output when it is ready.
"""

import ctypes
import fcntl
import ipaddress
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from virtcloud.agent.host_services.server_isolation import (
    NET_ADMIN,
    NET_BIND_SERVICE,
    NET_RAW,
    close_input,
    create_network_namespace,
    drop_privileges,
    fork_from_agent,
    limit_resources,
    read_specification,
)
from virtcloud.agent.network import libnftables

SIOCADDRT, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x890B, 0x8914, 0x8916, 0x891C  # linux/sockios.h, netdevice(7)
IFF_UP, RTF_UP = 1, 1
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
IPV4 = 4
KEPT_CAPABILITIES = (NET_BIND_SERVICE, NET_ADMIN, NET_RAW)
PORT = "svc0port"
SYSCTL = Path("/proc/sys/net")


class RouteEntry(ctypes.Structure):
    """``struct rtentry`` (linux/route.h)."""

    _fields_ = (
        ("pad1", ctypes.c_ulong),
        ("destination", ctypes.c_byte * 16),
        ("gateway", ctypes.c_byte * 16),
        ("mask", ctypes.c_byte * 16),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("irtt", ctypes.c_ushort),
    )


def main() -> None:
    """Start dnsmasq. Exit with code 1 and a message after an error."""
    try:
        _start()
    except OSError as error:
        sys.exit(str(error))


def _start() -> None:
    os.dup2(1, 2)
    create_network_namespace()
    fork_from_agent()
    spec = read_specification()
    if spec["neighbours"]:
        _add_bridge(spec["device"])
    _configure_interface(spec["device"], spec["addresses"])
    if spec["neighbours"]:
        _set_neighbours(spec["device"], spec["neighbours"])
        libnftables.run_commands(spec["rules"])
    limit_resources()
    drop_privileges(spec["uid"], spec["gid"], KEPT_CAPABILITIES)
    os.chdir("/")
    close_input()
    os.execve(spec["argv"][0], spec["argv"], {})  # noqa: S606 - the command is from the agent


def _configure_interface(device: str, addresses: list[str]) -> None:
    """Set the addresses, activate the interface, and add a default route through the interface.

    Answers to guests use this route.
    """
    _write_sysctls(_namespace_sysctls(device))
    index = socket.if_nametoindex(device)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for interface in map(ipaddress.ip_interface, addresses):
            if interface.version == IPV4:
                fcntl.ioctl(control, SIOCSIFADDR, _pack_ifreq(device, interface.ip.packed))
                fcntl.ioctl(control, SIOCSIFNETMASK, _pack_ifreq(device, interface.network.netmask.packed))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", device.encode(), IFF_UP))
        encoded = device.encode()  # the route contains a pointer to these octets
        fcntl.ioctl(control, SIOCADDRT, bytes(_default_route(encoded)))
    for interface in map(ipaddress.ip_interface, addresses):
        if interface.version != IPV4:
            request = struct.pack("16sIi", interface.ip.packed, interface.network.prefixlen, index)
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
                fcntl.ioctl(control, SIOCSIFADDR, request)


def _write_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if (SYSCTL / name).exists():  # on a kernel without IPv6, the file is missing
            (SYSCTL / name).write_text(value)


def _namespace_sysctls(device: str) -> dict[str, str]:
    """Return the values of sysctls by name. All values are set, because a new namespace may inherit the host's values.

    Duplicate address detection is off: no other interface of the segment has the server's addresses.
    """
    return {
        "ipv4/conf/all/forwarding": "0",
        "ipv6/conf/all/forwarding": "0",
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/all/accept_redirects": "0",
        f"ipv4/conf/{device}/rp_filter": "0",
        f"ipv4/conf/{device}/accept_redirects": "0",
        f"ipv6/conf/{device}/disable_ipv6": "0",
        f"ipv6/conf/{device}/accept_redirects": "0",
        f"ipv6/conf/{device}/accept_ra": "0",
        f"ipv6/conf/{device}/accept_dad": "0",
    }


def _pack_ifreq(name: str, address: bytes) -> bytes:
    return struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, address)


def _default_route(device: bytes) -> RouteEntry:
    any_address = (ctypes.c_byte * 16).from_buffer_copy(struct.pack("H14x", socket.AF_INET))
    return RouteEntry(destination=any_address, mask=any_address, flags=RTF_UP, device=device)


def _add_bridge(device: str) -> None:
    """Rename the interface ``device`` to `PORT`, and create a bridge ``device`` with the port `PORT`.

    With a bridge, rules can have the family ``bridge``, which every host that filters guests' frames supports. Like
    clusters' bridges, this bridge has neither spanning tree nor multicast snooping.
    """
    _write_sysctls({f"ipv6/conf/{device}/disable_ipv6": "1"})
    _run_ip(
        (
            f"link set dev {device} name {PORT}",
            f"link add name {device} type bridge stp_state 0 mcast_snooping 0",
            f"link set dev {PORT} master {device} up",
        )
    )


def _set_neighbours(device: str, neighbours: Iterable[tuple[str, str]]) -> None:
    _run_ip(f"neighbour replace {address} lladdr {mac} dev {device} nud permanent" for address, mac in neighbours)


def _run_ip(commands: Iterable[str]) -> None:
    program = shutil.which("ip", path=SEARCH_PATH)
    if program is None:
        raise OSError(f"the program ip (iproute2) is not in {SEARCH_PATH}: install the package iproute2")
    lines = "".join(f"{command}\n" for command in commands)
    done = subprocess.run([program, "-batch", "-"], input=lines, capture_output=True, text=True, check=False)  # noqa: S603 - a program of the host
    if done.returncode:
        raise OSError(f"cannot set the server's interface or its neighbours: {done.stderr.strip()}")
