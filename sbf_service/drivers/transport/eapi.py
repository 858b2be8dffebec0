"""Sessions with Arista EOS by NAPALM, over eAPI (JSON-RPC over HTTPS).

NAPALM treats every configuration session as a lock of another user. EOS keeps an abandoned session for 24 hours. SBF
therefore recognizes its own sessions by a prefix, and deletes those that a killed SBF process left. Other users'
sessions are no locks for SBF, because CloudVision always has an open session.
"""

import re
import socket
import ssl
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.device_errors import build_save_error
from sbf_service.drivers.transport.device_session import SESSION_LOST
from sbf_service.drivers.transport.napalm_session import REVERT_AFTER_S, NapalmSession
from virtcloud.model.errors import Refused, Unreachable

HTTPS_PORT = 443
SESSION_PREFIX = "virtcloud-"
SHOW_SESSIONS = "show configuration sessions"
SHOW_VERSION = "show version"
CLOCK_TOLERANCE_S = 10
"""Boot times that differ by at most this time count as equal, because clocks drift."""


class EosCommands(Protocol):
    """The properties of EOS's command-line dialect that an eAPI session uses."""

    @property
    def show(self) -> Sequence[str]:
        """The commands that show VLANs and ports."""

    @property
    def may_fail(self) -> frozenset[str]:
        """The commands that some models refuse."""

    @property
    def errors(self) -> re.Pattern[str]:
        """The pattern of refusals."""

    @property
    def save(self) -> Sequence[str]:
        """The single command that writes the startup configuration."""

    @property
    def saved(self) -> re.Pattern[str]:
        """The pattern of the output of ``save`` after a successful save."""


class EosSession(NapalmSession):
    """A session that uses NAPALM's driver ``eos``.

    Each request uses a new connection, so a restart ends no connection. To detect a restart, SBF checks the ``uptime``
    after loading a candidate, which a later restart would delete.
    """

    port = HTTPS_PORT

    def __init__(self, login: DeviceLogin, commands: EosCommands, show_neighbours: str) -> None:
        """Store the login and the commands. The session connects on first use."""
        super().__init__(login)
        self._commands = commands
        self._show_neighbours = show_neighbours
        self._booted = 0.0
        """When the switch booted, according to the last reading, in seconds of ``time.monotonic``."""

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Log in, and delete the configuration sessions that an earlier SBF process left on the switch."""
        from napalm.eos import EOSDriver  # noqa: PLC0415 - slow to load

        login = self._login
        options = {"transport": "https", "port": port, "context": self._create_tls_context(), "lock_disable": True}
        if login.enable is not None:
            options["enable_password"] = login.enable.get_secret_value()
        driver = EOSDriver(host, login.username, password, login.read_timeout, options)
        login.cancel_scope.attach(partial(self.abort_connection, driver))
        driver.open()
        for name, session in driver.cli([SHOW_SESSIONS], "json")[SHOW_SESSIONS]["sessions"].items():
            if name.startswith(SESSION_PREFIX) and session["state"] == "pending":
                driver.config_session = name
                driver.discard_config()
        return driver

    def describe_unknown_device(self) -> str:
        """Return the finding and the remedy for an unknown certificate."""
        return (
            f"a certificate that {self._login.ca_file} does not contain: nothing was sent; if the device was replaced "
            "or has a new certificate, add the certificate to that file (openssl s_client)"
        )

    def disconnect(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection.

        First reset the name of the configuration session. Otherwise, NAPALM's destructor would abort this session, and
        wait for a switch that does not answer.
        """
        driver.config_session = None
        driver.device.connection.transport.close()

    def abort_connection(self, driver: Any) -> None:  # noqa: ANN401
        """Shut the socket down, because closing it would wait for the thread that reads an answer."""
        driver.device.connection.transport.sock.shutdown(socket.SHUT_RDWR)

    def set_timeout(self, driver: Any, seconds: float) -> None:  # noqa: ANN401
        """Set the timeout of the HTTPS connection."""
        driver.device.connection.transport.timeout = seconds

    def show(self) -> Sequence[str]:
        """Return the answers to the show commands of the dialect."""
        self.call(self._check_no_pending_commit)
        if not self._is_changing:
            self._booted = self.call(_read_boot_time)
        return [self._run_show(command) for command in self._commands.show]

    def show_neighbours(self) -> str:
        """Return the neighbours in the output format of the command line."""
        return self._run_show(self._show_neighbours)

    def load(self, lines: Sequence[str]) -> str:
        """Create a configuration session, load the lines, and return the comparison.

        Raise Unreachable when the switch restarted after the last reading.
        """
        comparison = self.call(lambda driver: self._load(driver, "\n".join(lines)))
        if self.call(_read_boot_time) > self._booted + CLOCK_TOLERANCE_S:
            self.revert()
            self.close()
            raise Unreachable(f"{self._describe_device()} {SESSION_LOST}")
        return comparison

    def show_candidate(self) -> str:
        """Return the whole configuration that the configuration session contains."""
        return self.call(lambda driver: str(driver.get_config(retrieve="candidate")["candidate"]))

    def commit(self) -> None:
        """Commit with the confirm timer."""
        self.call_patiently(lambda driver: driver.commit_config(revert_in=REVERT_AFTER_S))

    def confirm(self) -> None:
        """Commit the configuration session a second time, which confirms the first commit.

        NAPALM's ``confirm_commit`` would also write the startup configuration, and ignore EOS's output.
        """
        self.call_patiently(self._confirm)
        self._is_changing = False

    def save(self) -> None:
        """Write the startup configuration. Raise Refused if EOS does not print that the configuration was saved."""
        (command,) = self._commands.save
        answers: list[str] = []
        self.call_patiently(lambda driver: answers.append(str(driver.cli([command])[command])))
        if self._commands.errors.search(answers[0]) or not self._commands.saved.search(answers[0]):
            raise build_save_error(f"switch {self._login.device.name}", command, answers[0])

    def revert(self) -> None:
        """Abort the configuration session, even if it was committed but not confirmed.

        NAPALM's rollback is not used: it can restore the startup configuration.
        """
        if self._is_changing:
            self.call_patiently(lambda driver: driver.discard_config())
            self._is_changing = False

    def _confirm(self, driver: Any) -> None:  # noqa: ANN401
        if not driver._get_pending_commits().get(driver.config_session):  # noqa: SLF001 - as in NAPALM's own confirmation
            reason = "expected SBF's unconfirmed commit, found no such commit"
            raise Unreachable(f"{self._describe_device()}: {reason}; SBF reads the device again")
        driver.device.run_commands([f"configure session {driver.config_session} commit"], encoding="text")
        driver.config_session = None

    def _check_no_pending_commit(self, driver: Any) -> None:  # noqa: ANN401
        if not self._is_changing and driver.has_pending_commit():
            raise self.build_pending_commit_error()

    def _run_show(self, command: str) -> str:
        try:
            return str(self.call(lambda driver: driver.cli([command])[command]))
        except Refused:
            if command in self._commands.may_fail:
                return ""
            raise

    def _load(self, driver: Any, text: str) -> str:  # noqa: ANN401
        driver.config_session = f"{SESSION_PREFIX}{uuid4().hex[:8]}"
        self._is_changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())

    def _create_tls_context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the certificates in ``ca_file``, without checking host names.

        Without ``ca_file``, trust every certificate. If the file does not exist, trust no certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        if self._login.ca_file is None:
            context.verify_mode = ssl.CERT_NONE
        elif self._login.ca_file.exists():
            context.load_verify_locations(self._login.ca_file)
        return context


def _read_boot_time(driver: Any) -> float:  # noqa: ANN401 - NAPALM has no types
    return time.monotonic() - float(driver.cli([SHOW_VERSION], "json")[SHOW_VERSION]["uptime"])
