"""Sessions with Junos by NAPALM, over NETCONF.

The configuration is locked for as long as a change takes: a private copy cannot be committed with a confirm timer
(Junos XML protocol guide), and whoever else commits meanwhile would confirm ours.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from sbf_service.drivers.candidate import REVERT_IN
from sbf_service.drivers.candidates.junos import FILTER, heard
from sbf_service.drivers.napalm_netconf import NETCONF_PORT, hang_up, ssh_config, text_of
from sbf_service.drivers.napalm_session import PATIENCE, NapalmSession
from sbf_service.neighbour import Neighbour
from virtcloud.model.errors import Unreachable

ACTIVE = {"database": "committed", "inherit": "inherit"}


class JunosSession(NapalmSession):
    """A session by NAPALM's ``junos``, locked by ourselves: NAPALM would let others in before we confirm."""

    port = NETCONF_PORT

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Connect by a PyEZ device of our own: the one that NAPALM makes looks at no host key."""
        from jnpr.junos import Device  # noqa: PLC0415 - slow to load
        from napalm.junos import JunOSDriver  # noqa: PLC0415

        login, literal = self._login, f"[{host}]" if ":" in host else host
        driver = JunOSDriver(literal, login.username, password, self._patience(), {"port": port, "lock_disable": True})
        with ssh_config(login.known_hosts) as config:
            driver.device = Device(
                literal,
                user=login.username,
                password=password or None,
                port=port,
                ssh_private_key_file=None if login.key_file is None else str(login.key_file),
                ssh_config=config,
                hostkey_verify=login.known_hosts is not None,
                allow_agent=False,
                look_for_keys=False,
                conn_open_timeout=login.connect_timeout,
            )
            driver.device._hostname = host  # noqa: SLF001 - PyEZ wants IPv6 in brackets, and its connection without
            driver.open()
        return driver

    def hang_up(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection."""
        driver.device.connected = False
        hang_up(driver.device._conn)  # noqa: SLF001 - PyEZ has no public name for it

    def show(self) -> Sequence[str]:
        """Give the active configuration's VLANs and interfaces in XML."""
        return (self.guarded(self._shown),)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Ask for the short list: one question, where details would be one for each port."""
        return heard(self.guarded(lambda driver: text_of(driver.device.rpc.get_lldp_neighbors_information())))

    def load(self, lines: Sequence[str]) -> str:
        """Lock, load, compare."""
        return self.guarded(lambda driver: self._loaded(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the timer."""
        self._patiently(lambda driver: driver.commit_config(revert_in=REVERT_IN))

    def confirm(self) -> None:
        """Commit once more, for good, and unlock."""
        self._patiently(lambda driver: driver.confirm_commit())
        self.guarded(self._unlocked)

    def take_back(self) -> None:
        """Roll back: to the configuration before ours if ours was committed, else throw the candidate away."""
        if self._changing:
            self._patiently(
                lambda driver: driver.rollback() if driver.has_pending_commit() else driver.discard_config()
            )
            self.guarded(self._unlocked)

    def _shown(self, driver: Any) -> str:  # noqa: ANN401
        if not self._changing and driver.has_pending_commit():
            why = "a commit waits to be confirmed and may be taken back"
            raise Unreachable(f"{self._whom()} is being configured: {why}; it is read again after that")
        return text_of(driver.device.rpc.get_config(FILTER, ACTIVE))

    def _loaded(self, driver: Any, text: str) -> str:  # noqa: ANN401
        driver.device.cu.lock()
        self._changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())

    def _unlocked(self, driver: Any) -> None:  # noqa: ANN401
        driver.device.cu.unlock()
        self._changing = False

    def _patiently(self, talk: Callable[[Any], None]) -> None:
        def patient(driver: Any) -> None:  # noqa: ANN401
            driver.device.timeout = self._patience(PATIENCE)
            talk(driver)
            driver.device.timeout = self._patience()

        self.guarded(patient)

    def _patience(self, times: int = 1) -> int:
        """Say how long an answer is waited for: PyEZ knows whole seconds."""
        return ceil(self._login.read_timeout * times)
