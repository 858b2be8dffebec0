"""Command lines over SSH by Netmiko. The library is loaded when the first device is reached: that takes a second.

Netmiko connects, finds the prompt, turns paging off and becomes privileged, each platform's way. What is said after
that goes through the session's channel directly: Netmiko's own commands ask for the prompt before each, look for
answers forty times a second, and do not see that a session was cut before their time is up.
"""

import re
import socket
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.transport.device_session import SESSION_LOST
from virtcloud.model.element import kind_of
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.values import DeviceAddress

SSH_PORT = 22
ECHO_CHARACTERS = 30
"""So much of a line stands on one line of any terminal, with the prompt before it."""
READ_BYTES = 65536
QUOTED_CHARACTERS = 100
LOGOUT = "exit"
"""What Netmiko logs when it gives up a login, though the device never sent it."""
SLOW_HINT = " (if it is always so slow: timing.read_timeout)"


class SshCommandLine:
    """One device's session, kept between questions. ``device_type`` is Netmiko's name for the dialect."""

    def __init__(self, login: DeviceLogin, device_type: str, *, privileged: bool = False) -> None:
        """Remember how to reach the device, and whether to say ``enable``; nothing is connected."""
        self._login = login
        self._device_type = device_type
        self._privileged = privileged
        self._session: Any = None
        self._logging_in = BytesIO()

    @property
    def prompt(self) -> str:
        """Give the prompt's pattern; see :class:`~sbf_service.drivers.transport.device_session.CommandLine`."""
        self._guarded(lambda: None)
        return rf"^[<\[]?{re.escape(self._session.base_prompt)}[^\n>#\]$]*[>#\]$] ?"

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send lines and hear the answers; see :class:`~sbf_service.drivers.transport.device_session.CommandLine`."""
        return str(self._guarded(lambda: self._converse(command, re.compile(until, re.MULTILINE), times, patience)))

    def is_lost(self) -> bool:
        """Say whether the device ended the session: it may have restarted."""
        session = self._session
        return session is not None and not _is_alive(session)

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                # Not disconnect(): that first says good-bye, and a device that hangs never answers.
                session.remote_conn_pre.close()

    def _guarded(self, talk: Any) -> Any:  # noqa: ANN401 - gives what it is given
        """Connect unless there is a session, and talk; foreign errors end here, and so does the session then.

        Raise Unreachable for a session that the device ended: the device may have restarted with another configuration.
        """
        import netmiko  # noqa: PLC0415 - slow to load, see above
        import paramiko  # noqa: PLC0415

        try:
            self._login.wire.check()
            if self.is_lost():
                self.close()
                raise Unreachable(f"{self._whom()} {SESSION_LOST}")
            if self._session is None:
                self._session = self._connect()
            return talk()
        except netmiko.NetmikoAuthenticationException as error:
            self.close()
            raise Refused(f"{self._whom()} does not let {self._login.username!r} in: check the credential") from error
        except (netmiko.NetmikoBaseException, paramiko.SSHException, OSError, EOFError, ValueError) as error:
            self.close()
            if not self._login.wire.left:
                raise Unreachable(f"{self._whom()}: {self._login.wire.why}; it is tried again") from error
            if _is_unknown_host_key(error):
                raise Unsafe(
                    f"{self._whom()} shows an SSH host key that {self._login.known_hosts} does not have for it: "
                    "nothing was said to it; if the device was replaced, put its new key there (ssh-keyscan)"
                ) from error
            if "enable mode" in str(error):
                raise Refused(f"{self._whom()} does not let us enable: check the credential's 'enable'") from error
            why = self._no_prompt() if _is_prompt_timeout(error) else _first_line(error)
            raise Unreachable(f"{self._whom()} does not answer: {why}; it is tried again") from error

    def _no_prompt(self) -> str:
        """Describe a login that did not come to a prompt: Netmiko names the pattern that it waited for."""
        waited = f"expected its prompt within {self._login.read_timeout:g} s of logging in"
        seen = self._logging_in.getvalue().decode(errors="replace").rstrip().removesuffix(LOGOUT)
        return f"{waited}, {_quote_last_line(seen)}{SLOW_HINT}"

    def _converse(self, command: str, until: re.Pattern[str], times: int, patience: float) -> str:
        channel, wire = self._session.remote_conn, self._login.wire
        while channel.recv_ready():
            wire.check()
            channel.recv(READ_BYTES)
        wire.check()
        self._session.write_channel(command.replace("\n", self._session.RETURN) + self._session.RETURN)
        usual = self._login.read_timeout * patience
        echo = command.partition("\n")[0][:ECHO_CHARACTERS]
        heard, rest = "", b""
        while True:
            channel.settimeout(min(usual, wire.left))
            try:
                data = self._hear(channel)
            except TimeoutError as error:
                wire.check()
                waited = f"nothing heard for {usual:g} s after {echo!r}"
                raise TimeoutError(f"{waited}, {_quote_last_line(heard + self._clean(rest))}{SLOW_HINT}") from error
            wire.check()
            lines, newline, rest = (rest + data).rpartition(b"\n")
            heard += self._clean(lines + newline)
            said = heard + self._clean(rest)
            answer = said.partition(echo)[2] if echo else said
            if len(until.findall(answer)) >= times:
                return answer

    def _hear(self, channel: Any) -> bytes:  # noqa: ANN401 - paramiko's, loaded late
        data: bytes = channel.recv(READ_BYTES)
        if not data:
            raise EOFError("it ended the session")
        return data

    def _clean(self, data: bytes) -> str:
        text = self._session.normalize_linefeeds(data.decode("utf-8", "replace"))
        return str(self._session.strip_ansi_escape_codes(text) if self._session.ansi_escape_codes else text)

    def _connect(self) -> Any:  # noqa: ANN401 - Netmiko gives a class of its own for each dialect
        import netmiko  # noqa: PLC0415

        login, self._logging_in = self._login, BytesIO()
        host, port = split_address(login.device.address or "")
        opened = socket.create_connection((host, port), min(login.connect_timeout, login.wire.left))
        login.wire.attach(partial(opened.shutdown, socket.SHUT_RDWR))
        try:
            return self._logged_in(netmiko, opened, host, port)
        except BaseException:
            opened.close()
            raise

    def _logged_in(self, netmiko: Any, opened: socket.socket, host: str, port: int) -> Any:  # noqa: ANN401 - see above
        login = self._login
        password = login.password.reveal() if login.password else None
        session = netmiko.ConnectHandler(
            device_type=self._device_type,
            sock=opened,
            host=host,
            port=port,
            username=login.username,
            use_keys=login.key_file is not None,
            key_file=None if login.key_file is None else str(login.key_file),
            password=password,
            secret=login.enable.reveal() if login.enable else password or "",
            allow_agent=False,
            conn_timeout=login.connect_timeout,
            auth_timeout=login.read_timeout,
            banner_timeout=login.read_timeout,
            read_timeout_override=login.read_timeout,
            ssh_strict=login.known_hosts is not None,
            alt_host_keys=login.known_hosts is not None,
            alt_key_file=str(login.known_hosts or ""),
            session_log=self._logging_in,
        )
        if self._privileged:
            session.enable()
        session.session_log = None
        return session

    def _whom(self) -> str:
        device = self._login.device
        return f"{kind_of(device)} {device.name} ({device.address or 'without an address'})"


def _is_unknown_host_key(error: Exception) -> bool:
    """Say whether it was the host key: Netmiko makes a time-out of that, and leaves the cause behind it."""
    import paramiko  # noqa: PLC0415

    return isinstance(error.__context__, paramiko.BadHostKeyException) or "not found in known_hosts" in str(error)


def _is_alive(session: Any) -> bool:  # noqa: ANN401 - Netmiko's
    """Say whether a kept session can still be spoken to: devices end those that are silent for some minutes."""
    channel = session.remote_conn
    return channel is not None and not channel.closed and not channel.eof_received and channel.transport.is_active()


def split_address(address: str, usual: int = SSH_PORT) -> tuple[str, int]:
    """Return the host and the TCP port of a device's address; ``usual`` where it names no port."""
    parsed = DeviceAddress(address)
    return parsed.host, parsed.port or usual


def _is_prompt_timeout(error: Exception) -> bool:
    """Return whether Netmiko waited in vain for a pattern while it logged in."""
    return "Pattern not detected" in str(error) or "prompt" in str(error)


def _quote_last_line(said: str) -> str:
    """Quote the last line that a device sent."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"seen last: {lines[-1][:QUOTED_CHARACTERS]!r}" if lines else "and nothing was seen"


def _first_line(error: Exception) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
