"""A real SSH server on the loopback interface for an emulated switch."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import paramiko

from support.emulators.polling import shorten_pauses
from support.emulators.switch_device import EmulatedSwitch
from support.emulators.terminal import Hangup

HOST = "127.0.0.1"
S = TypeVar("S", bound=EmulatedSwitch)


class _LoginServer(paramiko.ServerInterface):
    """Accepts a login with the switch's password, and then a request for the switch's subsystem.

    If the switch has no subsystem, this server accepts a request for a shell instead.
    """

    def __init__(self, switch: EmulatedSwitch) -> None:
        self._switch = switch
        self.requested = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        is_correct = (username, password) == (self._switch.username, self._switch.password)
        return paramiko.AUTH_SUCCESSFUL if is_correct else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_pty_request(self, *_: object) -> bool:
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        self.requested.set()
        return self._switch.subsystem is None

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        self.requested.set()
        return name == self._switch.subsystem


class SshServer:
    """The SSH server of one switch. It closes connections beyond the switch's session limit."""

    def __init__(self, switch: EmulatedSwitch) -> None:
        self._switch = switch
        self._key = paramiko.ECDSAKey.generate()
        switch.host_key = f"{self._key.get_name()} {self._key.get_base64()}"
        self._reserved = _bind((HOST, 0))
        """Reserves the port while the server does not listen."""
        self._socket: socket.socket | None = None
        self._open: set[paramiko.Transport] = set()
        self._threads: list[threading.Thread] = []
        switch.address = f"{HOST}:{self._reserved.getsockname()[1]}"
        switch.hang_up, switch.listen, switch.refuse = self.hang_up, self.start, self.refuse
        switch.in_use = lambda: len(self._open)

    def start(self) -> None:
        if self._socket is None and not self._switch.closing.is_set():
            self._socket = _bind(self._reserved.getsockname())
            self._socket.listen()
            self._begin(self._listen, self._socket)

    def refuse(self) -> None:
        listening, self._socket = self._socket, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def stop(self) -> None:
        self._switch.closing.set()
        self.refuse()
        self._reserved.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(timeout=5)

    def hang_up(self) -> None:
        for transport in list(self._open):
            # First count the session as dropped, then disconnect: the client may connect again at once.
            self._switch.lost.append(time.monotonic() + self._switch.linger)
            self._open.discard(transport)
            _disconnect(transport)

    def _lost(self) -> int:
        """Return the number of dropped sessions that the switch still counts as open."""
        return sum(until > time.monotonic() for until in self._switch.lost)

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"emulator {self._switch.platform}")  # type: ignore[arg-type]
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [thread]
        thread.start()

    def _listen(self, listening: socket.socket) -> None:
        while not self._switch.closing.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            if len(self._open) + self._lost() >= self._switch.sessions:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._key)
            self._open.add(transport)
            self._begin(self._serve, transport)

    def _serve(self, transport: paramiko.Transport) -> None:
        with contextlib.suppress(Hangup, OSError, EOFError, paramiko.SSHException):
            login_server = _LoginServer(self._switch)
            transport.start_server(server=login_server)
            channel = None
            while channel is None and transport.is_active():
                channel = transport.accept(timeout=0.1)
            if channel is not None and login_server.requested.wait(timeout=20):
                self._switch.logins += 1
                self._switch.serve(channel)
        _disconnect(transport)
        transport.join(timeout=5)
        self._open.discard(transport)


def _disconnect(transport: paramiko.Transport) -> None:
    """End a connection. Without the shutdown, paramiko would close the transport up to 0.1 s later."""
    with contextlib.suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


def _bind(address: tuple[str, int]) -> socket.socket:
    """Return a socket bound to an address. Several sockets may have the same address if only one of them listens."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    return bound


@contextlib.contextmanager
def listening(switch: S) -> Iterator[S]:
    shorten_pauses()
    server = SshServer(switch)
    server.start()
    try:
        yield switch
    finally:
        server.stop()
