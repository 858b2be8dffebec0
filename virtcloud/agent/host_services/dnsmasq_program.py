"""Starts dnsmasq in a new network namespace, without the host's privileges.

The agent runs this file as a program: ``python -I -S dnsmasq_program.py``. The file uses only the standard library, so
the program starts quickly. The program performs these steps:

1. create a network namespace, and print ``apart`` and the process ID
2. read the specification, which is one line of JSON
3. configure the interface, drop the privileges, and execute dnsmasq, which keeps the process ID

dnsmasq runs as its own user and keeps three capabilities: to bind ports below 1024, to send raw packets, and to change
the neighbours of its interface. These capabilities are valid in its network namespace only. No program that it could
execute gets more (``no_new_privs``). The namespace forwards no packets. The namespace ends with the process.

dnsmasq closes its standard output when it is ready. Before, it writes errors there.
"""

import ctypes
import fcntl
import ipaddress
import json
import os
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000  # linux/sched.h
SIOCADDRT, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x890B, 0x8914, 0x8916, 0x891C  # linux/sockios.h, netdevice(7)
IFF_UP, RTF_UP = 1, 1
PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 24, 38, 47, 2
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
KEPT_CAPABILITIES = (10, 12, 13)  # CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW
LAST_CAPABILITY = 63
IPV4 = 4
LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_AS: 256 << 20,
}
NICENESS = 5
"""A guest can send many requests. The host's other processes have precedence."""
SYSCTL = Path("/proc/sys/net")
_LIBC = ctypes.CDLL(None, use_errno=True)


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
    """Start dnsmasq. This function returns only if the agent ended before it sent the specification."""
    os.dup2(1, 2)
    _call("create a network namespace", _LIBC.unshare(CLONE_NEWNET))
    if os.fork():  # the parent process ends, so dnsmasq is not a child of the agent
        os._exit(0)
    os.write(1, f"apart {os.getpid()}\n".encode())
    line = sys.stdin.readline()
    if not line:
        return
    spec = json.loads(line)
    _configure_interface(spec["device"], spec["addresses"])
    _limit_resources()
    _drop_privileges(spec["uid"], spec["gid"])
    os.chdir("/")
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    os.execve(spec["argv"][0], spec["argv"], {})  # noqa: S606 - the agent names dnsmasq


def _configure_interface(device: str, addresses: list[str]) -> None:
    """Set the addresses, the interface up, and a default route, by which all guests of the segment are reached."""
    for name, value in _namespace_sysctls(device).items():
        if (SYSCTL / name).exists():  # on a kernel without IPv6, the file is missing
            (SYSCTL / name).write_text(value)
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


def _namespace_sysctls(device: str) -> dict[str, str]:
    """Return the sysctls of the namespace, which may inherit the host's sysctls.

    Duplicate address detection is off, because no other interface of the segment has the server's addresses.
    """
    return {
        "ipv4/conf/all/forwarding": "0",
        "ipv6/conf/all/forwarding": "0",
        "ipv4/conf/all/rp_filter": "0",
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


def _limit_resources() -> None:
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    os.nice(NICENESS)


def _drop_privileges(uid: int, gid: int) -> None:
    """Change to this user with `KEPT_CAPABILITIES`, which also dnsmasq gets (ambient set, capabilities(7))."""
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in KEPT_CAPABILITIES:
            _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for capabilities that the kernel does not have
    _call("keep capabilities", _LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kept = sum(1 << capability for capability in KEPT_CAPABILITIES)
    header, data = struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", kept, kept, kept, 0, 0, 0)
    _call("drop capabilities", _LIBC.capset(header, data))
    for capability in KEPT_CAPABILITIES:
        _call("keep capabilities", _LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))
    _call("renounce new privileges", _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _call(action: str, result: Any) -> None:  # noqa: ANN401 - ctypes
    if result:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"cannot {action}: {os.strerror(error_number)}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
