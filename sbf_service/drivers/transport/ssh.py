"""Command lines over SSH with Netmiko. Netmiko is imported on the first connection, because the import takes a second.

Netmiko connects, finds the prompt, turns paging off and enters the privileged mode, as the platform requires. Then SBF
uses the session's channel directly, because Netmiko's methods poll, request the prompt before each command, and detect
a lost connection late.
"""

import re
import socket
import time
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.device_errors import LoginRefused, UnknownHostKey
from sbf_service.drivers.transport.device_session import SESSION_LOST
from virtcloud.model.element import kind_of
from virtcloud.model.errors import BadInput, Unreachable
from virtcloud.model.values import DeviceAddress
from virtcloud.tracing import child_span

SSH_PORT = 22
ECHO_CHARACTERS = 30
"""The maximum number of characters by which SBF finds a command's echo: they fit on a terminal line after any prompt.
"""
READ_BYTES = 65536
QUOTED_LINE_CHARACTERS = 100
MAX_TRACED = 200
LOGOUT = "exit"
"""The text that Netmiko, not the device, appends to its log when it aborts a login."""
SLOW_HINT = " (if the device is always this slow, increase timing.read_timeout)"


class SshCommandLine:
    """A session with one device, reused between commands. ``device_type`` is the platform's name in Netmiko."""

    def __init__(self, login: DeviceLogin, device_type: str, *, privileged: bool = False) -> None:
        """Store the login, and whether to send ``enable``. The session connects on first use."""
        self._login = login
        self._device_type = device_type
        self._privileged = privileged
        self._session: Any = None
        self._login_log = BytesIO()

    @property
    def prompt(self) -> str:
        """The pattern of the prompt; see :class:`~sbf_service.drivers.transport.device_session.CommandLine`.

        A prompt contains no space, so a configuration line that begins with the host name does not match.
        """
        self._guard(lambda: None)
        return rf"^[<\[]?{re.escape(self._session.base_prompt)}[^\s>#\]$]*[>#\]$] ?"

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send lines and return the output; see :class:`~sbf_service.drivers.transport.device_session.CommandLine`."""
        with child_span("device command", command=command[:MAX_TRACED]):
            return str(self._guard(lambda: self._exchange(command, re.compile(until, re.MULTILINE), times, patience)))

    def is_lost(self) -> bool:
        """Return whether the device ended the session."""
        session = self._session
        return session is not None and not _is_alive(session)

    def close(self) -> None:
        """End the session. Idempotent; never raises."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                # disconnect() would log out first, and a device that hangs never answers a logout.
                session.remote_conn_pre.close()

    def _guard(self, action: Any) -> Any:  # noqa: ANN401 - returns what the action returns
        """Run ``action``, after connecting if there is no session.

        On an error of a library, close the session and raise SBF's corresponding error. Raise Unreachable if the device
        ended the session: the device may have restarted with another configuration.
        """
        import netmiko  # noqa: PLC0415 - slow to load, see above
        import paramiko  # noqa: PLC0415

        try:
            self._login.cancel_scope.check()
            if self.is_lost():
                self.close()
                raise Unreachable(f"{self._describe_device()} {SESSION_LOST}")
            if self._session is None:
                self._session = self._connect()
            return action()
        except netmiko.NetmikoAuthenticationException as error:
            self.close()
            raise LoginRefused(
                f"{self._describe_device()} refuses the login of {self._login.username!r}: check the credential"
            ) from error
        except (netmiko.NetmikoBaseException, paramiko.SSHException, OSError, EOFError, ValueError) as error:
            self.close()
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> LoginRefused | Unreachable | UnknownHostKey:
        device, scope = self._describe_device(), self._login.cancel_scope
        if not scope.remaining:
            return Unreachable(f"{device}: {scope.reason}; SBF tries again")
        if _is_unknown_host_key(error):
            return UnknownHostKey(
                f"{device} shows an SSH host key that {self._login.known_hosts} does not contain for this device: "
                "nothing was sent; if the device was replaced, add its new key to that file (ssh-keyscan)"
            )
        if _is_enable_failure(error):
            return LoginRefused(f"{device} refuses the privileged mode: check the credential's 'enable'")
        why = self._describe_missing_prompt() if _is_prompt_timeout(error) else _first_line(error)
        return Unreachable(f"{device} does not answer: {why}; SBF tries again")

    def _describe_missing_prompt(self) -> str:
        """Describe a login that reached no prompt, because Netmiko's error contains only the pattern."""
        expected = f"expected a prompt within {self._login.read_timeout:g} s after the login"
        output = self._login_log.getvalue().decode(errors="replace").rstrip().removesuffix(LOGOUT)
        return f"{expected}, {_quote_last_line(output)}{SLOW_HINT}"

    def _exchange(self, command: str, until: re.Pattern[str], times: int, patience: float) -> str:
        channel, scope = self._session.remote_conn, self._login.cancel_scope
        while channel.recv_ready():
            scope.check()
            channel.recv(READ_BYTES)
        scope.check()
        self._session.write_channel(command.replace("\n", self._session.RETURN) + self._session.RETURN)
        timeout = self._login.read_timeout * patience
        echo = command.partition("\n")[0][:ECHO_CHARACTERS]
        complete, rest = "", b""
        while True:
            try:
                data = self._receive(channel, timeout)
            except TimeoutError as error:
                waited = f"no output for {timeout:g} s after {echo!r}"
                last = _quote_last_line(complete + self._decode(rest))
                raise TimeoutError(f"{waited}, {last}{SLOW_HINT}") from error
            scope.check()
            lines, newline, rest = (rest + data).rpartition(b"\n")
            complete += self._decode(lines + newline)
            output = complete + self._decode(rest)
            answer = output.partition(echo)[2] if echo else output
            if len(until.findall(answer)) >= times:
                return answer

    def _receive(self, channel: Any, timeout: float) -> bytes:  # noqa: ANN401 - a type of paramiko, which is loaded late
        """Return the device's next output, or raise TimeoutError after ``timeout`` seconds without output.

        Raise ConversationCancelledError at the conversation's deadline, which a renewal of the lease can extend
        meanwhile.
        """
        scope = self._login.cancel_scope
        patient_until = time.monotonic() + timeout
        while (seconds := patient_until - time.monotonic()) > 0:
            scope.check()
            channel.settimeout(min(seconds, scope.remaining))
            try:
                data: bytes = channel.recv(READ_BYTES)
            except TimeoutError:
                continue
            if not data:
                raise EOFError("the device ended the session")
            return data
        scope.check()
        raise TimeoutError

    def _decode(self, data: bytes) -> str:
        text = self._session.normalize_linefeeds(data.decode("utf-8", "replace"))
        return str(self._session.strip_ansi_escape_codes(text) if self._session.ansi_escape_codes else text)

    def _connect(self) -> Any:  # noqa: ANN401 - Netmiko has a class for each platform
        """Return a new session. If the privileged mode is not reached, log in once more.

        If a prompt arrives later than ``read_timeout``, Netmiko takes the prompt for the answer to ``enable``. Only a
        second failure shows that the device refuses the password.
        """
        try:
            return self._log_in_once()
        except ValueError as error:
            if not _is_enable_failure(error):
                raise
            return self._log_in_once()

    def _log_in_once(self) -> Any:  # noqa: ANN401 - see above
        import netmiko  # noqa: PLC0415

        login, self._login_log = self._login, BytesIO()
        host, port = split_address(login.device.address)
        sock = socket.create_connection((host, port), min(login.connect_timeout, login.cancel_scope.remaining))
        login.cancel_scope.attach(partial(sock.shutdown, socket.SHUT_RDWR))
        try:
            return self._log_in(netmiko, sock, host, port)
        except BaseException:
            sock.close()
            raise

    def _log_in(self, netmiko: Any, sock: socket.socket, host: str, port: int) -> Any:  # noqa: ANN401 - see above
        login = self._login
        password = login.password.get_secret_value() if login.password else None
        session = netmiko.ConnectHandler(
            device_type=self._device_type,
            sock=sock,
            host=host,
            port=port,
            username=login.username,
            use_keys=login.key_file is not None,
            key_file=None if login.key_file is None else str(login.key_file),
            password=password,
            secret=login.enable.get_secret_value() if login.enable else password or "",
            allow_agent=False,
            conn_timeout=login.connect_timeout,
            auth_timeout=login.read_timeout,
            banner_timeout=login.read_timeout,
            read_timeout_override=login.read_timeout,
            ssh_strict=login.known_hosts is not None,
            alt_host_keys=login.known_hosts is not None,
            alt_key_file=str(login.known_hosts or ""),
            session_log=self._login_log,
        )
        if self._privileged:
            session.enable()
        session.session_log = None
        return session

    def _describe_device(self) -> str:
        device = self._login.device
        return f"{kind_of(device)} {device.name} ({device.address or 'without an address'})"


def _is_unknown_host_key(error: Exception) -> bool:
    """Return whether the host key was rejected: the ``__context__`` of Netmiko's timeout shows the rejection."""
    import paramiko  # noqa: PLC0415

    return isinstance(error.__context__, paramiko.BadHostKeyException) or "not found in known_hosts" in str(error)


def _is_enable_failure(error: Exception) -> bool:
    return "enable mode" in str(error)


def _is_alive(session: Any) -> bool:  # noqa: ANN401 - a type of Netmiko
    """Return whether an open session works. Devices end sessions that are idle for some minutes."""
    channel = session.remote_conn
    return channel is not None and not channel.closed and not channel.eof_received and channel.transport.is_active()


def split_address(address: str | None, default_port: int = SSH_PORT) -> tuple[str, int]:
    """Return the host and the TCP port of a device's address; ``default_port`` for an address without a port.

    Raise BadInput for a device without an address.
    """
    if address is None:
        raise BadInput("expected the key 'address' of this device in the topology, got none")
    parsed = DeviceAddress(address)
    return parsed.host, parsed.port or default_port


def _is_prompt_timeout(error: Exception) -> bool:
    return "Pattern not detected" in str(error) or "prompt" in str(error)


def _quote_last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"last output: {lines[-1][:QUOTED_LINE_CHARACTERS]!r}" if lines else "no output at all"


def _first_line(error: Exception) -> str:
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), type(error).__name__)
