"""What NETCONF sessions by NAPALM share: host keys, and hanging up.

Sessions with Junos by NAPALM, over NETCONF.

The configuration is locked for as long as a change takes: a private copy cannot be committed with a confirm timer
(Junos XML protocol guide), and whoever else commits meanwhile would confirm ours.

Sessions with Cisco IOS-XR by NAPALM, over NETCONF.

NAPALM loads and compares; it knows no confirm timer here, but NETCONF does (RFC 6241, confirmed commit), and that is
said over NAPALM's own connection. What is not confirmed is taken back as soon as its session ends. Nothing tells
whether a commit waits to be confirmed, so a read takes the lock for a moment: whoever is in the middle of a change
holds it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.switch.candidate_switch import REVERT_AFTER_S
from sbf_service.drivers.switch.candidates.cisco_iosxr import parse_iosxr_neighbours
from sbf_service.drivers.switch.candidates.juniper_junos import FILTER, parse_junos_neighbours
from sbf_service.drivers.transport.napalm_session import COMMIT_PATIENCE, NapalmSession
from virtcloud.model.errors import Unreachable

NETCONF_PORT = 830


@contextmanager
def write_ssh_config(known_hosts: Path | None) -> Iterator[str]:
    """Write an OpenSSH configuration that names the known host keys: ncclient takes the file's name from there only.

    Nobody's own configuration is read, in either case. A file of host keys that is not there has no keys.
    """
    file = known_hosts if known_hosts and known_hosts.exists() else "/dev/null"
    with NamedTemporaryFile("w", prefix="virtcloud-ssh-", suffix=".conf", encoding="utf-8") as config:
        config.write(f'Host *\n  UserKnownHostsFile "{file}"\n')
        config.flush()
        yield config.name


def close_manager(manager: Any) -> None:  # noqa: ANN401 - ncclient's
    """Close the connection under an ncclient manager; what was locked is free then, as the device sees it."""
    manager._session.close()  # noqa: SLF001 - its public close says good-bye and waits for an answer
    manager._session.join(1)  # noqa: SLF001


def render_xml(element: Any) -> str:  # noqa: ANN401 - lxml's
    """Write an answer as text; what is none (PyEZ gives True for an empty one) is empty."""
    from lxml import etree  # noqa: PLC0415 - slow to load

    return str(etree.tostring(element, encoding="unicode")) if etree.iselement(element) else ""


ACTIVE_CONFIGURATION = {"database": "committed", "inherit": "inherit"}


class JunosSession(NapalmSession):
    """A session by NAPALM's ``junos``, locked by ourselves: NAPALM would let others in before we confirm."""

    port = NETCONF_PORT

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Connect by a PyEZ device of our own: the one that NAPALM makes looks at no host key."""
        from jnpr.junos import Device  # noqa: PLC0415 - slow to load
        from napalm.junos import JunOSDriver  # noqa: PLC0415

        login, literal = self._login, f"[{host}]" if ":" in host else host
        driver = JunOSDriver(literal, login.username, password, self._patience(), {"port": port, "lock_disable": True})
        with write_ssh_config(login.known_hosts) as config:
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
        close_manager(driver.device._conn)  # noqa: SLF001 - PyEZ has no public name for it

    def show(self) -> Sequence[str]:
        """Give the active configuration's VLANs and interfaces in XML."""
        return (self.guarded(self._shown),)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Ask for the short list: one question, where details would be one for each port."""
        return parse_junos_neighbours(
            self.guarded(lambda driver: render_xml(driver.device.rpc.get_lldp_neighbors_information()))
        )

    def load(self, lines: Sequence[str]) -> str:
        """Lock, load, compare."""
        return self.guarded(lambda driver: self._loaded(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the timer."""
        self._patiently(lambda driver: driver.commit_config(revert_in=REVERT_AFTER_S))

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
        return render_xml(driver.device.rpc.get_config(FILTER, ACTIVE_CONFIGURATION))

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
            driver.device.timeout = self._patience(COMMIT_PATIENCE)
            talk(driver)
            driver.device.timeout = self._patience()

        self.guarded(patient)

    def _patience(self, times: int = 1) -> int:
        """Say how long an answer is waited for: PyEZ knows whole seconds."""
        return ceil(self._login.read_timeout * times)


class IosXrSession(NapalmSession):
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
        with write_ssh_config(login.known_hosts) as config:
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
        close_manager(driver.device)

    def show(self) -> Sequence[str]:
        """Give the running configuration."""
        return (self.guarded(self._shown),)

    def neighbours(self) -> tuple[Neighbour, ...]:
        """Ask NAPALM's question, and read the answer here: NAPALM takes one that it does not understand for nobody."""
        from napalm.iosxr_netconf.constants import LLDP_RPC_REQ_FILTER  # noqa: PLC0415 - slow to load

        return parse_iosxr_neighbours(
            self.guarded(lambda driver: str(driver.device.get(("subtree", LLDP_RPC_REQ_FILTER)).xml))
        )

    def load(self, lines: Sequence[str]) -> str:
        """Lock, load, compare."""
        return self.guarded(lambda driver: self._loaded(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the timer."""
        self._patiently(lambda driver: driver.device.commit(confirmed=True, timeout=str(REVERT_AFTER_S)))
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
            driver.device.timeout = self._login.read_timeout * COMMIT_PATIENCE
            talk(driver)
            driver.device.timeout = self._login.read_timeout

        self.guarded(patient)
