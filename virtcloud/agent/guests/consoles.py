"""The consoles of guests: interactive use of all consoles, and logs for containers and for virtual machines on Xen.

libvirt connects each console with a pseudo terminal of the host. For virtual machines on QEMU, virtlogd writes a log,
and the agent reads the terminal only while a user is connected. For all other guests, the agent always reads the
terminal, and appends the output to a log of limited size.
"""

import errno
import os
import select
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.agent import log
from virtcloud.model.errors import Refused

MAX_LOG_BYTES = 1 << 20
"""At this size in bytes, the agent renames the log ``NAME`` to ``NAME.0``, and replaces an older ``NAME.0``."""
CHUNK = 1 << 16
STALL_S, WRITE_S, WRITE_POLL_S = 1.0, 30.0, 0.01
"""Times in seconds: the limit for a guest that reads nothing, the limit for one piece of input (at most 64 KiB), and
the pause between attempts to write.
"""
Listener = Callable[[bytes], None]
"""A function that receives a console's output. The function must not block. ``b""``: the console has ended."""


@dataclass(slots=True)
class _Console:
    """The console of a running guest. Without a log, ``log`` is None."""

    terminal: str
    log: Path | None
    descriptor: int | None = None
    listeners: list[Listener] = field(default_factory=list)


class GuestConsoles:
    """The consoles of this host's running guests, by domain name. Thread-safe."""

    def __init__(self) -> None:
        """Start without consoles."""
        self._lock = threading.RLock()
        self._consoles: dict[str, _Console] = {}
        self._domains: dict[int, str] = {}
        self._poll = select.epoll()
        self._thread: threading.Thread | None = None

    def knows(self, domain: str) -> bool:
        """Return whether a domain's console was added and has not ended. A console with a log must also be open.

        If the console could not be opened, the next call of `add` tries again.
        """
        with self._lock:
            console = self._consoles.get(domain)
            return console is not None and (console.log is None or console.descriptor is not None)

    def add(self, domain: str, terminal: str, log_file: Path | None) -> None:
        """Add the console of a running domain. Append the output to ``log_file``, unless ``log_file`` is None."""
        with self._lock:
            self._remove(domain)
            self._consoles[domain] = console = _Console(terminal, log_file)
            if log_file is not None:
                self._try_open(domain, console)

    def remove(self, domain: str) -> None:
        """Close the console of a domain that ends, if there is one, and send ``b""`` to its listeners."""
        with self._lock:
            self._remove(domain)

    @contextmanager
    def connect(self, domain: str, listener: Listener) -> Iterator[Callable[[bytes], None]]:
        """Send a console's output to ``listener`` within the block. Yield a function that sends input.

        Raise Refused if the guest does not run, or its console cannot be opened. The yielded function raises Refused if
        the guest has ended.
        """
        with self._lock:
            console = self._consoles.get(domain)
            if console is None:
                raise Refused("the guest does not run, or its console is not connected yet: try again")
            if console.descriptor is None:
                self._open(domain, console)
            console.listeners.append(listener)
        try:
            yield lambda data: self._write(console, data)
        finally:
            with self._lock:
                console.listeners.remove(listener)
                if not console.listeners and console.log is None:
                    self._close(console)

    def close(self) -> None:
        """Close all consoles."""
        with self._lock:
            for domain in list(self._consoles):
                self._remove(domain)

    def _try_open(self, domain: str, console: _Console) -> None:
        try:
            self._open(domain, console)
        except Refused as error:
            log.warning("console_not_opened", domain=domain, error=error)

    def _open(self, domain: str, console: _Console) -> None:
        try:
            descriptor = os.open(console.terminal, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"cannot open the guest's console {console.terminal}: {error.strerror}") from error
        with suppress(OSError):
            tty.setraw(descriptor, termios.TCSANOW)  # the default, TCSAFLUSH, discards what the guest has written
        console.descriptor = descriptor
        self._domains[descriptor] = domain
        self._poll.register(descriptor, select.EPOLLIN)
        try:
            self._ensure_thread()
        except RuntimeError as error:
            self._close(console)
            raise Refused(
                f"cannot read {console.terminal}: the agent cannot start a thread: {error}; try again"
            ) from error

    def _ensure_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="consoles", daemon=True)
            thread.start()
            self._thread = thread

    def _remove(self, domain: str) -> None:
        console = self._consoles.pop(domain, None)
        if console is not None:
            self._close(console)
            for listener in console.listeners:
                listener(b"")

    def _close(self, console: _Console) -> None:
        descriptor, console.descriptor = console.descriptor, None
        if descriptor is not None:
            self._domains.pop(descriptor, None)
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def _write(self, console: _Console, data: bytes) -> None:
        """Send input to a console.

        Discard the rest if the guest stalls for `STALL_S` seconds, or after `WRITE_S` seconds.
        """
        rest, began = data, time.monotonic()
        deadline = began + min(STALL_S, WRITE_S)
        while rest:
            # Read the clock before the attempt, so that an agent that was paused past the deadline makes one more
            # attempt.
            now = time.monotonic()
            written = self._write_part(console, rest)
            rest = rest[written:]
            if written:
                deadline = min(now + STALL_S, began + WRITE_S)
            else:
                time.sleep(WRITE_POLL_S)
            if now >= deadline:
                return

    def _write_part(self, console: _Console, data: bytes) -> int:
        with self._lock:
            if console.descriptor is None:
                raise Refused("the guest has ended")
            try:
                return os.write(console.descriptor, data)
            except BlockingIOError:
                return 0
            except OSError as error:  # EIO: the thread that reads consoles has not noticed the guest's end yet
                raise Refused(f"the guest has ended: {error.strerror}") from error

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                with self._lock:
                    self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        domain = self._domains.get(descriptor)
        if domain is None:
            return  # another thread closed the console after the poll
        console = self._consoles[domain]
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the guest has ended
                log.warning("console_not_read", domain=domain, error=error)
            data = b""
        if not data:
            self._remove(domain)
            return
        if console.log is not None:
            _append(console.log, data)
        for listener in list(console.listeners):
            listener(data)


def list_log_files(log_file: Path) -> list[Path]:
    """Return the paths of a console's log files, the oldest first, for example ``NAME.1``, ``NAME.0`` and ``NAME``.

    The last path is always ``log_file``, which may be missing.
    """
    former = sorted(log_file.parent.glob(f"{log_file.name}.[0-9]"), reverse=True)
    return [*former, log_file]


def _append(log_file: Path, data: bytes) -> None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(log_file, flags, 0o600)
        try:
            os.write(descriptor, data)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size >= MAX_LOG_BYTES:
            log_file.rename(log_file.with_name(f"{log_file.name}.0"))
    except OSError as error:
        log.warning("console_log_not_written", file=log_file, error=error)
