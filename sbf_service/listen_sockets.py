"""The sockets on which the server listens: TCP, and an AF_UNIX socket if configured."""

import errno
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sbf_service.local_files import open_lock_file, try_file_lock
from sbf_service.settings import ListenAddress, ServiceSettings
from virtcloud.model.errors import BadInput

BACKLOG: Final = 4096
"""The maximum number of waiting connections. Linux limits this number to net.core.somaxconn (4,096)."""
MAX_PORT: Final = 65535
SOCKET_MODE: Final = 0o660
LOCK_MODE: Final = 0o600
"""The mode of the lock file beside an AF_UNIX socket. A user who can open the file could prevent SBF's start."""
LOCK_PATIENCE_S, LOCK_POLL_S = 5.0, 0.1
"""The maximum time that a starting SBF waits for the lock, and the pause between two attempts, both in seconds."""
CLOSED: Final = -1
SOCKET_FAULTS: Final = {
    errno.EADDRINUSE: "in use by another process: stop that process, or set another address",
    errno.EADDRNOTAVAIL: "this machine does not have the address: set an address of this machine (run: ip address)",
    errno.EACCES: "permission denied: give SBF's user the right to use the address, or set another address",
}
"""The observation and the remedy for errors of bind(2) and of access to the socket's folder, by errno."""


def listen(settings: ServiceSettings) -> list[socket.socket]:
    """Open the configured sockets.

    Raise BadInput for a socket that cannot be opened, or if tokens would cross a network unencrypted. The TCP socket is
    opened last: a client that can connect over TCP can also use the AF_UNIX socket.
    """
    _check_plaintext(settings)
    sockets = [] if settings.socket is None else [_listen_unix(settings.socket)]
    return [*sockets, _listen_tcp(settings.listen)]


def find_tcp_address(sockets: Iterable[socket.socket]) -> str:
    """Return the address and port of the TCP socket, also if the kernel chose the port (0 in ``listen``)."""
    host, port, *_ = next(opened for opened in sockets if opened.family != socket.AF_UNIX).getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def find_removed_files(sockets: Iterable[socket.socket]) -> list[socket.socket]:
    """Return the open AF_UNIX sockets whose files another program has removed: no client can reach these sockets."""
    return [
        opened
        for opened in sockets
        if opened.family == socket.AF_UNIX and opened.fileno() != CLOSED and not os.path.lexists(opened.getsockname())
    ]


def reopen(lost: socket.socket) -> socket.socket:
    """Return a new socket with the path of ``lost``, or raise BadInput at once if the path cannot be used.

    The caller is the event loop, which repeats the call later. ``lost`` stays open.
    """
    return _listen_unix(Path(lost.getsockname()), patience=0)


def remove_socket_files(sockets: Iterable[socket.socket]) -> None:
    """Remove the files of the AF_UNIX sockets that are open. Idempotent.

    The file of a closed socket can belong to another service.
    """
    for opened in sockets:
        if opened.family == socket.AF_UNIX and opened.fileno() != CLOSED:
            Path(opened.getsockname()).unlink(missing_ok=True)


def _check_plaintext(settings: ServiceSettings) -> None:
    if settings.tls_certificate is None and not settings.allow_plaintext and not settings.listen.is_loopback:
        raise BadInput(
            f"listen = {str(settings.listen)!r}: tokens would cross a network unencrypted; set tls_certificate and "
            "tls_key, listen on the loopback, or set allow_plaintext = true if you control the whole network"
        )


def _listen_tcp(address: ListenAddress) -> socket.socket:
    if address.port > MAX_PORT:
        raise BadInput(
            f"listen = {str(address)!r}: expected a port up to {MAX_PORT}, got {address.port}: set another port"
        )
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio disables Nagle's algorithm (RFC 1122) only for a socket with the explicit protocol TCP. Without this
    # algorithm, small answers are sent 40 ms earlier.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((address.host, address.port))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise BadInput(f"listen = {str(address)!r}: {_describe_socket_error(error)}") from error
    return opened


def _listen_unix(path: Path, patience: float = LOCK_PATIENCE_S) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_path(path, patience):
            _remove_stale(path)
            opened.bind(str(path))
            path.chmod(SOCKET_MODE)
            opened.listen(BACKLOG)
    except BadInput:
        opened.close()
        raise
    except OSError as error:
        opened.close()
        raise BadInput(f"socket = '{path}': {_describe_socket_error(error)}") from error
    return opened


@contextmanager
def _lock_path(path: Path, patience: float) -> Iterator[None]:
    """Lock a file beside the socket. Raise BadInput if another process still holds the lock after ``patience`` seconds.

    Without the lock, another starting service could remove the file of a socket that does not listen yet. SBF does not
    lock the folder itself: every user who can read the folder could hold such a lock.
    """
    lock, ends = path.with_name(f".{path.name}.lock"), time.monotonic() + patience
    try:
        opened = open_lock_file(lock, LOCK_MODE)
    except OSError as error:
        raise BadInput(f"socket = '{path}': lock file {lock}: {_describe_socket_error(error)}") from error
    with opened as file:
        while not try_file_lock(file):
            if time.monotonic() >= ends:
                raise BadInput(
                    f"socket = '{path}': expected to lock the file {lock}, but another process holds the lock: end "
                    f"that process (fuser {lock}), or set another path"
                )
            time.sleep(LOCK_POLL_S)
        yield


def _remove_stale(path: Path) -> None:
    """Remove a socket file on which no process listens.

    If a process listens, leave the file, so that bind(2) fails. Raise BadInput if the path names no socket.
    """
    if not path.is_socket():
        if os.path.lexists(path):
            kind = "folder" if path.is_dir() else "file"
            raise BadInput(
                f"socket = '{path}': expected a path without a file, found a {kind} that is no socket: remove it, or "
                "set another path"
            )
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def _describe_socket_error(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}: correct the name of the host, or set an IP address"
    found = error.strerror or str(error)
    return SOCKET_FAULTS.get(error.errno or 0, f"{found}: set another address")
