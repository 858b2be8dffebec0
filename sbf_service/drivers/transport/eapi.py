"""Sessions with Arista EOS by NAPALM, over eAPI (JSON-RPC over HTTPS).

NAPALM's own name for a configuration session is another one each time, and it takes any session that was left behind
for somebody's lock, for the 24 hours that EOS keeps it. So ours have names of our own, those that a killed service left
behind are thrown away, and others' are no lock: CloudVision always has one open.
"""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.switch.candidate_switch import REVERT_AFTER_S
from sbf_service.drivers.switch.dialects.arista_eos import DIALECT, LLDP
from sbf_service.drivers.switch.lldp import parse_neighbours
from sbf_service.drivers.transport.conversation import build_save_error
from sbf_service.drivers.transport.device_session import SESSION_LOST
from sbf_service.drivers.transport.napalm_session import COMMIT_PATIENCE, NapalmSession
from virtcloud.model.errors import Refused, Unreachable

HTTPS_PORT = 443
SESSION_PREFIX = "virtcloud-"
SHOW_SESSIONS = "show configuration sessions"
SHOW_VERSION = "show version"
CLOCK_TOLERANCE_S = 10
"""How far the switch's clock and ours may drift apart between a reading and its change; a restart takes longer."""


class EosSession(NapalmSession):
    """A session by NAPALM's ``eos``.

    Each request is a connection of its own, so that a restart ends no session: ``uptime`` shows it. A candidate does
    not outlive a restart, so the check after loading covers the commit too.
    """

    port = HTTPS_PORT
    _started = 0.0
    """When the switch started, as seen when it was read, in seconds of ``time.monotonic``."""

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Log in, and throw away what an earlier service left behind."""
        from napalm.eos import EOSDriver  # noqa: PLC0415 - slow to load

        login = self._login
        wanted = {"transport": "https", "port": port, "context": self._certificates(), "lock_disable": True}
        if login.enable is not None:
            wanted["enable_password"] = login.enable.reveal()
        driver = EOSDriver(host, login.username, password, login.read_timeout, wanted)
        login.wire.attach(partial(self.sever, driver))
        driver.open()
        for name, session in driver.cli([SHOW_SESSIONS], "json")[SHOW_SESSIONS]["sessions"].items():
            if name.startswith(SESSION_PREFIX) and session["state"] == "pending":
                driver.config_session = name
                driver.discard_config()
        return driver

    def stranger(self) -> str:
        """Say that its certificate is not known."""
        return (
            f"a certificate that {self._login.ca_file} does not know: nothing was said to it; if the device was "
            "replaced or has a new certificate, put that there (openssl s_client)"
        )

    def hang_up(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection. NAPALM's destructor must have nothing to abort: it would wait for a silent switch."""
        driver.config_session = None
        driver.device.connection.transport.close()

    def sever(self, driver: Any) -> None:  # noqa: ANN401
        """Shut the socket down: closing it would wait for an answer that is read meanwhile."""
        driver.device.connection.transport.sock.shutdown(socket.SHUT_RDWR)

    def show(self) -> Sequence[str]:
        """Give the answers to the questions of the command line."""
        self.guarded(self._settled)
        if not self._changing:
            self._started = self.guarded(_read_boot_time)
        return [self._answer(command) for command in DIALECT.show]

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Ask as on the command line."""
        return parse_neighbours(LLDP, self._answer(LLDP.show))

    def load(self, lines: Sequence[str]) -> str:
        """Make a session, put the lines in, compare. Raise Unreachable when the switch restarted since it was read."""
        compared = self.guarded(lambda driver: self._loaded(driver, "\n".join(lines)))
        if self.guarded(_read_boot_time) > self._started + CLOCK_TOLERANCE_S:
            self.take_back()
            self.close()
            raise Unreachable(f"{self._whom()} {SESSION_LOST}")
        return compared

    def candidate(self) -> str:
        """Return the whole configuration of the session."""
        return self.guarded(lambda driver: str(driver.get_config(retrieve="candidate")["candidate"]))

    def commit(self) -> None:
        """Commit with the timer."""
        self._patiently(lambda driver: driver.commit_config(revert_in=REVERT_AFTER_S))

    def confirm(self) -> None:
        """Commit once more; not by NAPALM, which writes the startup configuration then and ignores what EOS prints."""
        self._patiently(self._confirmed)
        self._changing = False

    def save(self) -> None:
        """Write the startup configuration. Raise Refused unless EOS prints that it did."""
        (command,) = DIALECT.save
        answers: list[str] = []
        self._patiently(lambda driver: answers.append(str(driver.cli([command])[command])))
        if DIALECT.errors.search(answers[0]) or not DIALECT.saved.search(answers[0]):
            raise build_save_error(f"switch {self._login.device.name}", command, answers[0])

    def take_back(self) -> None:
        """Abort the session, committed or not: NAPALM's rollback may bring back the startup configuration instead."""
        if self._changing:
            self._patiently(lambda driver: driver.discard_config())
            self._changing = False

    def _confirmed(self, driver: Any) -> None:  # noqa: ANN401
        if not driver._get_pending_commits().get(driver.config_session):  # noqa: SLF001 - as NAPALM confirms
            why = "the commit that was to be confirmed is not there any more"
            raise Unreachable(f"{self._whom()}: {why}; it is read again")
        driver.device.run_commands([f"configure session {driver.config_session} commit"], encoding="text")
        driver.config_session = None

    def _settled(self, driver: Any) -> None:  # noqa: ANN401
        if not self._changing and driver.has_pending_commit():
            why = "a commit waits to be confirmed and may be taken back"
            raise Unreachable(f"{self._whom()} is being configured: {why}; it is read again after that")

    def _answer(self, command: str) -> str:
        try:
            return str(self.guarded(lambda driver: driver.cli([command])[command]))
        except Refused:
            if command in DIALECT.may_fail:
                return ""
            raise

    def _loaded(self, driver: Any, text: str) -> str:  # noqa: ANN401
        driver.config_session = f"{SESSION_PREFIX}{uuid4().hex[:8]}"
        self._changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())

    def _patiently(self, talk: Callable[[Any], None]) -> None:
        def patient(driver: Any) -> None:  # noqa: ANN401
            transport = driver.device.connection.transport
            transport.timeout = self._login.read_timeout * COMMIT_PATIENCE
            talk(driver)
            transport.timeout = self._login.read_timeout

        self.guarded(patient)

    def _certificates(self) -> ssl.SSLContext:
        """Believe the certificates of the credential's file, whatever name they bear; without a file, any."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        if self._login.ca_file is None:
            context.verify_mode = ssl.CERT_NONE
        elif self._login.ca_file.exists():
            context.load_verify_locations(self._login.ca_file)
        return context


def _read_boot_time(driver: Any) -> float:  # noqa: ANN401 - NAPALM has no types
    """Return when the switch started, in seconds of ``time.monotonic``."""
    return time.monotonic() - float(driver.cli([SHOW_VERSION], "json")[SHOW_VERSION]["uptime"])
