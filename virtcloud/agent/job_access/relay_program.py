"""A job's relay: a process in a separate network namespace with one interface on the cluster's segment.

The agent runs ``python -I -S relay_program.py``, so the file uses only the standard library and starts quickly. The
relay survives a restart of the agent. The steps are:

1. create a network namespace, and print ``apart`` and the process ID
2. read the specification, which is one line of JSON
3. configure the interface, drop the privileges, and print ``ready``
4. answer requests until the interface is removed

The job's user sends ``HOST PORT`` to the relay's AF_UNIX socket. The relay opens a TCP connection in the namespace, and
answers with ``ok`` and the connection's descriptor (SCM_RIGHTS, unix(7)). Connections survive the end of the relay,
because the relay copies no data. The namespace has no default route, forwards no packets and has no network listener.
The relay refuses addresses outside the cluster's subnets.
"""

import array
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

DEVICE = "job0"
NOBODY = 65534
MAX_LINE = 300
MAX_ANSWERS = 64
"""Maximum number of simultaneous answers to the job's user. Each answer needs a thread of the relay.

systemd counts the threads of relays as tasks of the agent's service.
"""
REQUEST_S, CONNECT_S, ACCEPT_RETRY_S = 10.0, 20.0, 0.1
"""In seconds: the time limits for a request and for connecting to a guest, and the pause after a failed accept."""
CLONE_NEWNET = 0x40000000  # linux/sched.h
PR_SET_DUMPABLE = 4  # linux/prctl.h
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, IFF_UP = 0x8914, 0x8916, 0x891C, 1  # linux/sockios.h, netdevice(7)
RTMGRP_LINK = 1  # rtnetlink(7)
IPV4 = 4
SYSCTL = Path("/proc/sys/net")
NAMESPACE_SYSCTLS = {
    "ipv4/conf/all/forwarding": "0",
    "ipv6/conf/all/forwarding": "0",
    f"ipv4/conf/{DEVICE}/arp_ignore": "1",
    f"ipv4/conf/{DEVICE}/accept_redirects": "0",
    f"ipv6/conf/{DEVICE}/accept_redirects": "0",
    f"ipv6/conf/{DEVICE}/accept_ra": "0",
    f"ipv6/conf/{DEVICE}/accept_dad": "0",
    f"ipv6/conf/{DEVICE}/addr_gen_mode": "1",
}
"""Sysctls of the namespace.

Forwarding is switched off, because a new namespace may inherit the host's IPv4 sysctls. Duplicate address detection is
off, because the agent has already probed the addresses.
"""


class Relay:
    """The relay: its interface, its listening socket, and the addresses to which it connects."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Configure the interface and listen at the socket. Raise OSError on failure."""
        self._digest: str = spec["about"]
        self._uid: int = spec["uid"]
        self._hosts: dict[str, str] = spec["hosts"]
        self._subnets = [ipaddress.ip_network(subnet) for subnet in spec["subnets"]]
        self._slots = threading.BoundedSemaphore(MAX_ANSWERS)
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._netlink.bind((0, RTMGRP_LINK))
        _configure_interface(spec["addresses"])
        self._listener = _listen(spec["socket"], self._uid)

    def run(self) -> None:
        """Answer requests until the interface is removed."""
        poll = select.poll()
        for source in (self._netlink, self._listener):
            poll.register(source, select.POLLIN)
        while _has_device():
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._netlink.fileno() in ready:
                self._read_link_events()
            if self._listener.fileno() in ready:
                self._accept()

    def _read_link_events(self) -> None:
        """Discard the pending events, which only wake `run`."""
        try:
            self._netlink.recv(65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise

    def _accept(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except OSError:
            time.sleep(ACCEPT_RETRY_S)  # for example, too many open descriptors
        else:
            self._start_answer(caller)

    def _start_answer(self, caller: socket.socket) -> None:
        """Answer a request in a thread. Refuse the request if too many requests of the job's user are unanswered.

        Requests of the agent, which runs as root, are not limited: the agent recreates a relay that does not answer.
        """
        slots = None if _peer_uid(caller) == 0 else self._slots
        if slots is not None and not slots.acquire(blocking=False):
            # The word "refused" makes the connect program try again.
            _refuse(caller, "refused: too many simultaneous requests; try again")
            return
        try:
            threading.Thread(target=self._answer, args=(caller, slots), daemon=True).start()
        except RuntimeError as error:
            if slots is not None:
                slots.release()
            _refuse(caller, f"failed: the relay cannot start a thread: {error}")

    def _answer(self, caller: socket.socket, slots: threading.BoundedSemaphore | None) -> None:
        try:
            with caller, suppress(OSError):  # the caller may have closed the connection
                self._answer_line(caller, _read_line(caller))
        finally:
            if slots is not None:
                slots.release()

    def _answer_line(self, caller: socket.socket, line: str) -> None:
        caller.settimeout(REQUEST_S)
        if _peer_uid(caller) not in {0, self._uid}:
            caller.sendall(b"forbidden: only the job's user may send requests\n")
        elif line == "about":
            caller.sendall(f"ok {self._digest}\n".encode())
        else:
            self._pass_connection(caller, line)

    def _pass_connection(self, caller: socket.socket, line: str) -> None:
        try:
            connection = self._connect(line)
        except ConnectionRefusedError:
            caller.sendall(f"refused: no process listens at {line}\n".encode())
        except (ValueError, OSError) as error:
            caller.sendall(f"failed: {line}: {getattr(error, 'strerror', None) or error}\n".encode())
        else:
            with connection:
                # socket.send_fds() would import the module `array` now, which may fail without privileges.
                rights = array.array("i", [connection.fileno()])
                caller.sendmsg([b"ok\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _connect(self, line: str) -> socket.socket:
        host, _, port = line.partition(" ")
        if not (port.isdigit() and 0 < int(port) < 1 << 16):
            raise ValueError("expected HOST PORT")
        address = ipaddress.ip_address(self._hosts.get(host, host))
        if not any(address in subnet for subnet in self._subnets):
            raise ValueError(f"expected a guest's name or an address in {' or '.join(map(str, self._subnets))}")
        connection = socket.socket(socket.AF_INET if address.version == IPV4 else socket.AF_INET6)
        try:
            connection.settimeout(CONNECT_S)
            connection.connect((str(address), int(port)))
            connection.setblocking(True)
        except BaseException:
            connection.close()
            raise
        return connection


def main() -> None:
    """Run the relay until its interface is removed."""
    _unshare()
    if os.fork():  # the parent ends, so the relay is no child of the agent
        os._exit(0)
    _report(f"apart {os.getpid()}")
    line = sys.stdin.readline()
    if not line:  # the agent ended before it sent the specification
        return
    try:
        relay = Relay(json.loads(line))
        _drop_privileges()
    except OSError as error:
        _report(f"failed: {error}")
        return
    _report("ready")
    _detach()
    relay.run()


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"cannot create a network namespace: {os.strerror(error_number)}")


def _report(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:  # the agent ended or no longer waits
        os._exit(1)


def _configure_interface(addresses: list[str]) -> None:
    """Add the addresses to the interface, and bring the interface up (netdevice(7)).

    IPv6 addresses are added with ``struct in6_ifreq``.
    """
    for name, value in NAMESPACE_SYSCTLS.items():
        if (SYSCTL / name).exists():  # on a kernel without IPv6, the file is missing
            (SYSCTL / name).write_text(value)
    index = socket.if_nametoindex(DEVICE)
    interfaces = [ipaddress.ip_interface(address) for address in addresses]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for position, interface in enumerate(interface for interface in interfaces if interface.version == IPV4):
            name = (
                f"{DEVICE}:{position}" if position else DEVICE
            )  # netdevice(7): each additional address needs an alias name
            fcntl.ioctl(control, SIOCSIFADDR, _pack_ifreq(name, interface.ip.packed))
            fcntl.ioctl(control, SIOCSIFNETMASK, _pack_ifreq(name, interface.network.netmask.packed))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", DEVICE.encode(), IFF_UP))
    for interface in (interface for interface in interfaces if interface.version != IPV4):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(
                control, SIOCSIFADDR, struct.pack("16sIi", interface.ip.packed, interface.network.prefixlen, index)
            )


def _pack_ifreq(name: str, address: bytes) -> bytes:
    return struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, address)


def _listen(path: str, uid: int) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    former_umask = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chown(path, uid, -1)
        listener.listen(64)
    finally:
        os.umask(former_umask)
    return listener


def _drop_privileges() -> None:
    """Change to the user `nobody`, and prevent other processes of `nobody` from controlling this process (ptrace(2)).

    The second step is necessary: ``fs.suid_dumpable`` can permit this control after a change of the user.
    """
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"cannot protect the relay from other processes: {os.strerror(error_number)}")


def _detach() -> None:
    os.chdir("/")
    with Path(os.devnull).open("r+b") as null:
        os.dup2(null.fileno(), 0)
        os.dup2(null.fileno(), 1)


def _has_device() -> bool:
    try:
        socket.if_nametoindex(DEVICE)
    except OSError:
        return False
    return True


def _read_line(caller: socket.socket) -> str:
    deadline, text = time.monotonic() + REQUEST_S, b""
    while not text.endswith(b"\n"):
        caller.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = caller.recv(MAX_LINE)
        if not chunk or len(text) > MAX_LINE:
            raise OSError(errno.EPROTO, "expected one line")
        text += chunk
    return text.decode(errors="replace").strip()


def _refuse(caller: socket.socket, answer: str) -> None:
    with caller, suppress(OSError):
        caller.sendall(f"{answer}\n".encode())


def _peer_uid(caller: socket.socket) -> int:
    uid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


if __name__ == "__main__":
    main()
