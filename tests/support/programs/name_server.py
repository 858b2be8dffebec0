"""A DNS server (dnsmasq) for tests, and a /etc/resolv.conf that names only this server."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MS_BIND: Final = 0x1000
ADDRESS: Final = "127.0.0.1"
LIMIT_S: Final = 10.0


class NameServer:
    """A dnsmasq, authoritative for ``example.org``. By default, it runs in the namespaces of the creating thread."""

    def __init__(self, folder: Path, enter: tuple[str, ...] = ()) -> None:
        """Start the server. ``enter`` is a command, such as nsenter, that starts dnsmasq in another namespace."""
        self._hosts, self._log = folder / "names", folder / "dns.log"
        self._hosts.touch()
        options = "--keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --bind-interfaces --user=root"
        own = f"--listen-address={ADDRESS} --local=/example.org/ --addn-hosts={self._hosts} --pid-file= --log-queries"
        command = [*enter, "dnsmasq", *options.split(), *own.split(), f"--log-facility={self._log}"]
        self.process = subprocess.Popen(command)  # noqa: S603 - dnsmasq
        self._wait_for("read ")

    def answer(self, names: Mapping[str, Iterable[str]]) -> None:
        """Set the answers: ``names`` maps each name to its addresses. Other names of ``example.org`` do not exist."""
        lines = [f"{address} {name}\n" for name, addresses in names.items() for address in addresses]
        self._hosts.write_text("".join(lines))
        former = self.log.count("read ")
        self.process.send_signal(signal.SIGHUP)
        self._wait_for("read ", former)

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @contextmanager
    def hanging(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _wait_for(self, text: str, former: int = 0) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.log.count(text) <= former:
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.01)


def write_resolver_file(folder: Path) -> Path:
    """Write a resolv.conf with the server's address and a search domain. Return the path of the file.

    Tests use the search domain to check that a gateway looks up names without an appended domain.
    """
    path = folder / "resolv.conf"
    path.write_text(f"nameserver {ADDRESS}\nsearch example.org\n")
    return path


def use_name_server(folder: Path) -> None:
    """Make the server the resolver of this thread's mount namespace, which child processes inherit."""
    write_resolver_file(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = os.fsencode(folder / "resolv.conf"), os.fsencode(Path("/etc/resolv.conf").resolve())
    if libc.mount(source, target, None, ctypes.c_ulong(MS_BIND), None):
        raise OSError(ctypes.get_errno(), "cannot replace /etc/resolv.conf")
