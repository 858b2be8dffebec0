"""Command lines over SSH by Netmiko. The library is loaded when the first device is reached: that takes a second."""

from contextlib import suppress
from typing import Any

from sbf_service.drivers.driver import Login
from virtcloud.model.errors import Refused, Unreachable

SSH_PORT = 22


class NetmikoLine:
    """One device's session, kept between questions. ``device_type`` is Netmiko's name for the dialect."""

    def __init__(self, login: Login, device_type: str) -> None:
        """Remember how to reach the device; nothing is connected."""
        self._login = login
        self._device_type = device_type
        self._session: Any = None

    def ask(self, command: str, until: str) -> str:
        """Send one line; see :class:`~sbf_service.drivers.line.CommandLine`."""
        import netmiko  # noqa: PLC0415 - slow to load, see above
        from paramiko import SSHException  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            if self._session is None:
                self._session = self._connect()
            return str(
                self._session.send_command(
                    command,
                    expect_string=until,
                    read_timeout=self._login.read_timeout,
                    strip_prompt=False,
                    strip_command=False,
                    cmd_verify=False,
                )
            )
        except netmiko.exceptions.NetmikoAuthenticationException as error:
            self.close()
            raise Refused(f"{self._whom()} does not let {self._login.username!r} in: check the credential") from error
        except (
            netmiko.exceptions.NetmikoBaseException,
            SSHException,
            OSError,
            EOFError,
            ValueError,
        ) as error:
            self.close()
            raise Unreachable(f"{self._whom()} does not answer: {_first_line(error)}; it is tried again") from error

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                # Not disconnect(): that first says good-bye, and a device that hangs never answers.
                session.remote_conn_pre.close()

    def _connect(self) -> Any:  # noqa: ANN401 - Netmiko gives a class of its own for each dialect
        import netmiko  # noqa: PLC0415

        host, port = _host_and_port(self._login.switch.address or "")
        return netmiko.ConnectHandler(
            device_type=self._device_type,
            host=host,
            port=port,
            username=self._login.username,
            use_keys=self._login.key_file is not None,
            key_file=None if self._login.key_file is None else str(self._login.key_file),
            password=self._login.password.reveal() if self._login.password else None,
            allow_agent=False,
            conn_timeout=self._login.connect_timeout,
            auth_timeout=self._login.read_timeout,
            banner_timeout=self._login.read_timeout,
            read_timeout_override=self._login.read_timeout,
        )

    def _whom(self) -> str:
        return f"switch {self._login.switch.name} ({self._login.switch.address or 'without an address'})"


def _host_and_port(address: str) -> tuple[str, int]:
    """Split ``host``, ``host:port`` or ``[IPv6]:port``."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest.removeprefix(":") or SSH_PORT)
    host, colon, port = address.partition(":")
    return (address, SSH_PORT) if ":" in port else (host, int(port) if colon else SSH_PORT)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
