"""A job's own place on its cluster's segment, as a process: a network namespace with one interface, and a relay.

It is run by itself (``python -I -S jobport_relay.py``) with the standard library only, so that it starts at once, and
it outlives an agent that is restarted. It makes its namespace, says ``apart`` and its process's number, is told in one
line of JSON what to be, and says ``ready``. From then on it has no privilege; when its interface goes, it ends.

On its AF_UNIX socket the job's user asks for ``HOST PORT`` and gets ``ok`` together with a TCP connection that was made
inside the namespace (SCM_RIGHTS, unix(7)): nothing is carried from one to the other, and connections outlive the relay.
The namespace has no route, forwards nothing, and nothing listens in it; what is not in the cluster's subnets is
refused.
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
LONGEST_LINE = 300
ASK_S, CONNECT_S, PAUSE_S = 10.0, 20.0, 0.1
CLONE_NEWNET = 0x40000000  # linux/sched.h
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
"""A new namespace may have the machine's own settings for IPv4: forwarding is off whatever those are.

The addresses were asked for before, so that the kernel need not wait to find duplicates.
"""


class Relay:
    """The interface and the listening socket; what may be reached, and by whom."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        """Set the interface up and listen; raises OSError with the kernel's words."""
        self._about: str = wanted["about"]
        self._user: int = wanted["uid"]
        self._hosts: dict[str, str] = wanted["hosts"]
        self._subnets = [ipaddress.ip_network(one) for one in wanted["subnets"]]
        self._links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._links.bind((0, RTMGRP_LINK))
        _configure_interface(wanted["addresses"])
        self._listener = _listen(wanted["socket"], self._user)

    def run(self) -> None:
        """Answer until the interface is gone."""
        poll = select.poll()
        for one in (self._links, self._listener):
            poll.register(one, select.POLLIN)
        while _has_device():
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._links.fileno() in ready:
                self._hear()
            if self._listener.fileno() in ready:
                self._accept()

    def _hear(self) -> None:
        """Read what happened to interfaces; what was lost does not matter, since the interface is looked at."""
        try:
            self._links.recv(65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            time.sleep(PAUSE_S)  # too many are open at this moment
        else:
            self._begin(link)

    def _begin(self, link: socket.socket) -> None:
        """Answer in a thread; where this machine has none left, the caller is refused and the relay goes on."""
        try:
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()
        except RuntimeError as error:
            with link, suppress(OSError):
                link.sendall(f"failed: the relay cannot start a thread: {error}\n".encode())

    def _answer(self, link: socket.socket) -> None:
        with link, suppress(OSError):  # whoever asked may be gone
            link.settimeout(ASK_S)
            line = _read_line(link)
            if _peer_uid(link) not in {0, self._user}:
                link.sendall(b"forbidden: only the job's user may ask\n")
            elif line == "about":
                link.sendall(f"ok {self._about}\n".encode())
            else:
                self._give(link, line)

    def _give(self, link: socket.socket, line: str) -> None:
        """Make the connection that was asked for, and hand it over."""
        try:
            made = self._connected(line)
        except ConnectionRefusedError:
            link.sendall(f"refused: nothing listens at {line}\n".encode())
        except (ValueError, OSError) as error:
            link.sendall(f"failed: {line}: {getattr(error, 'strerror', None) or error}\n".encode())
        else:
            with made:
                rights = array.array("i", [made.fileno()])  # socket.send_fds() would import it now: without privileges
                link.sendmsg([b"ok\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def _connected(self, line: str) -> socket.socket:
        host, _, port = line.partition(" ")
        if not (port.isdigit() and 0 < int(port) < 1 << 16):
            raise ValueError("expected HOST PORT")
        address = ipaddress.ip_address(self._hosts.get(host, host))
        if not any(address in one for one in self._subnets):
            raise ValueError(f"expected a guest's name or an address in {' or '.join(map(str, self._subnets))}")
        made = socket.socket(socket.AF_INET if address.version == IPV4 else socket.AF_INET6)
        try:
            made.settimeout(CONNECT_S)
            made.connect((str(address), int(port)))
            made.setblocking(True)
        except BaseException:
            made.close()
            raise
        return made


def main() -> None:
    """Be the relay until the interface goes."""
    _unshare()
    if os.fork():  # the agent's child ends here: it waits for no relay, and a relay not for an agent
        os._exit(0)
    _report(f"apart {os.getpid()}")
    line = sys.stdin.readline()
    if not line:  # the agent ended before it said what to be
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
        number = ctypes.get_errno()
        raise OSError(number, f"cannot make a network namespace: {os.strerror(number)}")


def _report(words: str) -> None:
    try:
        os.write(1, f"{words}\n".encode())
    except BrokenPipeError:  # the agent wants no relay any more, or is gone
        os._exit(1)


def _configure_interface(addresses: list[str]) -> None:
    """Give the interface its addresses and bring it up (netdevice(7); for IPv6 its struct in6_ifreq)."""
    for name, value in NAMESPACE_SYSCTLS.items():
        if (SYSCTL / name).exists():  # a kernel without IPv6 has no such file
            (SYSCTL / name).write_text(value)
    index = socket.if_nametoindex(DEVICE)
    interfaces = [ipaddress.ip_interface(one) for one in addresses]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for number, one in enumerate(one for one in interfaces if one.version == IPV4):
            name = f"{DEVICE}:{number}" if number else DEVICE  # a second address is an alias to these calls
            fcntl.ioctl(control, SIOCSIFADDR, _pack_ifreq(name, one.ip.packed))
            fcntl.ioctl(control, SIOCSIFNETMASK, _pack_ifreq(name, one.network.netmask.packed))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", DEVICE.encode(), IFF_UP))
    for one in (one for one in interfaces if one.version != IPV4):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, SIOCSIFADDR, struct.pack("16sIi", one.ip.packed, one.network.prefixlen, index))


def _pack_ifreq(name: str, address: bytes) -> bytes:
    return struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, address)


def _listen(path: str, user: int) -> socket.socket:
    """Listen where only the job's user may connect; the folder belongs to root."""
    Path(path).unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chown(path, user, -1)
        listener.listen(64)
    finally:
        os.umask(before)
    return listener


def _drop_privileges() -> None:
    """Give all privileges up; the kernel then lets no other process of that user look into this one."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _detach() -> None:
    """Let go of the agent's pipes and folder."""
    os.chdir("/")
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)


def _has_device() -> bool:
    try:
        socket.if_nametoindex(DEVICE)
    except OSError:
        return False
    return True


def _read_line(link: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n"):
        more = link.recv(LONGEST_LINE)
        if not more or len(text) > LONGEST_LINE:
            raise OSError(errno.EPROTO, "no line")
        text += more
    return text.decode(errors="replace").strip()


def _peer_uid(link: socket.socket) -> int:
    found: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return found


if __name__ == "__main__":
    main()
