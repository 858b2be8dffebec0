"""Sessions with Cisco IOS-XR by NAPALM, over NETCONF.

NAPALM loads and compares; it knows no confirm timer here, but NETCONF does (RFC 6241, confirmed commit), and that is
said over NAPALM's own connection. What is not confirmed is taken back as soon as its session ends. Nothing tells
whether a commit waits to be confirmed, so a read takes the lock for a moment: whoever is in the middle of a change
holds it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sbf_service.drivers.candidate import REVERT_IN
from sbf_service.drivers.candidates.cisco_iosxr import heard
from sbf_service.drivers.napalm_netconf import NETCONF_PORT, hang_up, ssh_config
from sbf_service.drivers.napalm_session import PATIENCE, NapalmSession
from sbf_service.neighbour import Neighbour


class XrSession(NapalmSession):
    """A session by NAPALM's ``iosxr_netconf``."""

    port = NETCONF_PORT
    _committed = False

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Connect by a manager of our own: the one that NAPALM makes believes every host key, whatever it is told."""
        from napalm.iosxr_netconf import IOSXRNETCONFDriver  # noqa: PLC0415 - slow to load
        from ncclient import manager  # noqa: PLC0415
        from ncclient.devices.iosxr import IosxrDeviceHandler  # noqa: PLC0415

        class Handler(IosxrDeviceHandler):  # type: ignore[misc]
            def add_additional_ssh_connect_params(self, kwargs: dict[str, object]) -> None:
                """Leave out what ncclient adds for IOS-XR: a function that agrees to any host key."""

        login = self._login
        driver = IOSXRNETCONFDriver(host, login.username, password, login.read_timeout)
        with ssh_config(login.known_hosts) as config:
            driver.device = manager.connect(
                host=host,
                port=port,
                username=login.username,
                password=password,
                key_filename=None if login.key_file is None else str(login.key_file),
                timeout=login.connect_timeout,
                device_params={"name": "iosxr", "handler": Handler},
                ssh_config=config,
                hostkey_verify=login.known_hosts is not None,
                allow_agent=False,
                look_for_keys=False,
            )
        driver.device.timeout = login.read_timeout
        return driver

    def hang_up(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection; NAPALM's destructor then finds it closed."""
        hang_up(driver.device)

    def show(self) -> Sequence[str]:
        """Give the running configuration."""
        return (self.guarded(self._shown),)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Ask NAPALM's question, and read the answer here: NAPALM takes one that it does not understand for nobody."""
        from napalm.iosxr_netconf.constants import LLDP_RPC_REQ_FILTER  # noqa: PLC0415 - slow to load

        return heard(self.guarded(lambda driver: str(driver.device.get(("subtree", LLDP_RPC_REQ_FILTER)).xml)))

    def load(self, lines: Sequence[str]) -> str:
        """Lock, load, compare."""
        return self.guarded(lambda driver: self._loaded(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the timer."""
        self._patiently(lambda driver: driver.device.commit(confirmed=True, timeout=str(REVERT_IN)))
        self._committed = True

    def confirm(self) -> None:
        """Commit once more, for good, and unlock."""
        self._patiently(lambda driver: driver.commit_config())
        self._changing = False

    def take_back(self) -> None:
        """Cancel what was committed, throw the candidate away, unlock."""
        if self._changing and self._committed:
            self._patiently(lambda driver: driver.device.cancel_commit())
        if self._changing:
            self._patiently(lambda driver: driver.discard_config())
        self._changing = False

    def _shown(self, driver: Any) -> str:  # noqa: ANN401
        if not self._changing:
            driver.device.lock()
            driver.device.unlock()
        return str(driver.get_config("running")["running"])

    def _loaded(self, driver: Any, text: str) -> str:  # noqa: ANN401
        self._committed = False
        driver._lock()  # noqa: SLF001 - so that it is known whether anything is to be taken back
        self._changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())

    def _patiently(self, talk: Callable[[Any], object]) -> None:
        def patient(driver: Any) -> None:  # noqa: ANN401
            driver.device.timeout = self._login.read_timeout * PATIENCE
            talk(driver)
            driver.device.timeout = self._login.read_timeout

        self.guarded(patient)
