"""Sessions over NETCONF with NAPALM: Juniper Junos and Cisco IOS-XR.

A change locks the configuration. The device reverts an unconfirmed commit (RFC 6241). NAPALM's connections accept any
host key; if ``known_hosts`` is set, the connections of this module accept only the host keys in this file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from sbf_service.drivers.transport.napalm_session import REVERT_AFTER_S, NapalmSession

NETCONF_PORT = 830
JUNOS_FILTER = "<configuration><interfaces/><vlans/></configuration>"
ACTIVE_CONFIGURATION = {"database": "committed", "inherit": "inherit"}


class JunosSession(NapalmSession):
    """A session by NAPALM's ``junos``. SBF locks and unlocks the configuration.

    NAPALM would unlock before the confirmation, and another user's commit would then confirm SBF's commit. A private
    copy is no alternative: Junos commits a private copy only without a confirm timer (Junos XML protocol guide).
    """

    port = NETCONF_PORT

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Connect with a new PyEZ device, because NAPALM's PyEZ device checks no host key."""
        from jnpr.junos import Device  # noqa: PLC0415 - slow to load
        from napalm.junos import JunOSDriver  # noqa: PLC0415

        login, literal = self._login, f"[{host}]" if ":" in host else host
        options = {"port": port, "lock_disable": True}
        driver = JunOSDriver(literal, login.username, password, ceil(login.read_timeout), options)
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
            driver.device._hostname = host  # noqa: SLF001 - PyEZ parses IPv6 in brackets but connects without them
            driver.open()
        return driver

    def disconnect(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection."""
        driver.device.connected = False
        close_manager(driver.device._conn)  # noqa: SLF001 - PyEZ has no public name for the connection

    def set_timeout(self, driver: Any, seconds: float) -> None:  # noqa: ANN401
        """Set the timeout of PyEZ, rounded up to whole seconds."""
        driver.device.timeout = ceil(seconds)

    def show(self) -> Sequence[str]:
        """Return the VLANs and interfaces of the active configuration in XML."""
        return (self.call(self._show),)

    def show_neighbours(self) -> str:
        """Return the neighbours in XML. Details would need a request for each port."""
        return self.call(lambda driver: render_xml(driver.device.rpc.get_lldp_neighbors_information()))

    def load(self, lines: Sequence[str]) -> str:
        """Lock the configuration, load the lines, and return the comparison of candidate and running configuration."""
        return self.call(lambda driver: self._load(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the confirm timer."""
        self.call_patiently(lambda driver: driver.commit_config(revert_in=REVERT_AFTER_S))

    def confirm(self) -> None:
        """Confirm the first commit by a second commit, and unlock the configuration."""
        self.call_patiently(lambda driver: driver.confirm_commit())
        self.call(self._unlock)

    def revert(self) -> None:
        """Revert SBF's change and unlock the configuration. Do nothing without a change of SBF."""
        if self._is_changing:
            self.call_patiently(
                lambda driver: driver.rollback() if driver.has_pending_commit() else driver.discard_config()
            )
            self.call(self._unlock)

    def _show(self, driver: Any) -> str:  # noqa: ANN401
        if not self._is_changing and driver.has_pending_commit():
            raise self.build_pending_commit_error()
        return render_xml(driver.device.rpc.get_config(JUNOS_FILTER, ACTIVE_CONFIGURATION))

    def _load(self, driver: Any, text: str) -> str:  # noqa: ANN401
        driver.device.cu.lock()
        self._is_changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())

    def _unlock(self, driver: Any) -> None:  # noqa: ANN401
        driver.device.cu.unlock()
        self._is_changing = False


class IosXrSession(NapalmSession):
    """A session by NAPALM's ``iosxr_netconf``, except for the commit with the confirm timer.

    The device reverts an unconfirmed commit when the session of the commit ends. No command shows another user's
    unconfirmed commit, but the lock fails while a commit waits for its confirmation, and while another user changes the
    configuration. Therefore, :meth:`show` first locks and unlocks the configuration, unless SBF is changing it.
    """

    port = NETCONF_PORT
    _has_committed = False

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401
        """Connect with a new ncclient manager, because NAPALM's manager accepts every host key."""
        from napalm.iosxr_netconf import IOSXRNETCONFDriver  # noqa: PLC0415 - slow to load
        from ncclient import manager  # noqa: PLC0415
        from ncclient.devices.iosxr import IosxrDeviceHandler  # noqa: PLC0415

        class Handler(IosxrDeviceHandler):  # type: ignore[misc]
            def add_additional_ssh_connect_params(self, kwargs: dict[str, object]) -> None:
                """Omit the parameter that ncclient adds for IOS-XR: a function that accepts any host key."""

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

    def disconnect(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection, so that NAPALM's destructor finds it closed."""
        close_manager(driver.device)

    def set_timeout(self, driver: Any, seconds: float) -> None:  # noqa: ANN401
        """Set the timeout of ncclient."""
        driver.device.timeout = seconds

    def show(self) -> Sequence[str]:
        """Return the running configuration."""
        return (self.call(self._show),)

    def show_neighbours(self) -> str:
        """Return the neighbours in XML.

        NAPALM's parser would treat an unknown answer as an answer without neighbours.
        """
        from napalm.iosxr_netconf.constants import LLDP_RPC_REQ_FILTER  # noqa: PLC0415 - slow to load

        return self.call(lambda driver: str(driver.device.get(("subtree", LLDP_RPC_REQ_FILTER)).xml))

    def load(self, lines: Sequence[str]) -> str:
        """Lock the configuration, load the lines, and return the comparison of candidate and running configuration."""
        return self.call(lambda driver: self._load(driver, "\n".join(lines)))

    def commit(self) -> None:
        """Commit with the confirm timer."""
        self.call_patiently(lambda driver: driver.device.commit(confirmed=True, timeout=str(REVERT_AFTER_S)))
        self._has_committed = True

    def confirm(self) -> None:
        """Confirm the first commit by a second commit, and unlock the configuration."""
        self.call_patiently(lambda driver: driver.commit_config())
        self._is_changing = False

    def revert(self) -> None:
        """Revert SBF's change and unlock the configuration. Do nothing without a change of SBF."""
        if self._is_changing and self._has_committed:
            self.call_patiently(lambda driver: driver.device.cancel_commit())
        if self._is_changing:
            self.call_patiently(lambda driver: driver.discard_config())
        self._is_changing = False

    def _show(self, driver: Any) -> str:  # noqa: ANN401
        if not self._is_changing:
            driver.device.lock()
            driver.device.unlock()
        return str(driver.get_config("running")["running"])

    def _load(self, driver: Any, text: str) -> str:  # noqa: ANN401
        self._has_committed = False
        driver._lock()  # noqa: SLF001 - a separate call, so that `_is_changing` is set only after the lock
        self._is_changing = True
        driver.load_merge_candidate(config=text)
        return str(driver.compare_config())


@contextmanager
def write_ssh_config(known_hosts: Path | None) -> Iterator[str]:
    """Yield the path of a temporary OpenSSH configuration that names the file of known host keys.

    ncclient reads this name only from an OpenSSH configuration. The configuration of the user who runs SBF is not used.
    A missing file of host keys counts as empty.
    """
    file = known_hosts if known_hosts and known_hosts.exists() else "/dev/null"
    with NamedTemporaryFile("w", prefix="virtcloud-ssh-", suffix=".conf", encoding="utf-8") as config:
        config.write(f'Host *\n  UserKnownHostsFile "{file}"\n')
        config.flush()
        yield config.name


def close_manager(manager: Any) -> None:  # noqa: ANN401 - a type of ncclient
    """Close the connection of an ncclient manager. The device then releases the locks of the session."""
    manager._session.close()  # noqa: SLF001 - its public close logs out and waits for an answer
    manager._session.join(1)  # noqa: SLF001


def render_xml(element: Any) -> str:  # noqa: ANN401 - a type of lxml
    """Return an answer as text; "" for an answer that is not an XML element, such as ``True`` (PyEZ)."""
    from lxml import etree  # noqa: PLC0415 - slow to load

    return str(etree.tostring(element, encoding="unicode")) if etree.iselement(element) else ""
