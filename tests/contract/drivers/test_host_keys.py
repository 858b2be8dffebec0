"""Tests of SSH host keys: SBF logs in only to a device whose key is in the administrators' file."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from support.emulators import emulate
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.drivers.contract import DeviceLogin, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import Unsafe
from virtcloud.model.switch_state import SwitchObserved
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

OVER_SSH = ("arista_eos", "juniper_junos", "cisco_iosxr")
"""One platform for each library that checks host keys."""
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJSJZw4r0uCkyBAxxVvJAjHCGlLE3yqXdNmqYhFjrNdH"


def read(switch: EmulatedSwitch, known_hosts: Path) -> SwitchObserved:
    port = PortName(switch.port_names[0])
    element = SwitchElement(name=Name("sw1"), ports=(port,), platform=switch.platform, address=switch.address)
    password, enable = SecretStr(switch.password), SecretStr(switch.secret)
    login = DeviceLogin(element, switch.username, password=password, enable=enable, known_hosts=known_hosts)
    driver = SWITCH_PLATFORMS[switch.platform].driver(login)
    try:
        return driver.read(SwitchScope((port,), VlanSet.parse("100-199")))
    finally:
        driver.close()


def write_known_hosts(folder: Path, switch: EmulatedSwitch, key: str) -> Path:
    host, _, port = switch.address.partition(":")
    path = folder / "known_hosts"
    path.write_text(f"[{host}]:{port} {key}\n")
    return path


@pytest.mark.parametrize("platform", OVER_SSH)
def test_a_switch_with_the_known_host_key_is_read(platform: str, tmp_path: Path) -> None:
    with emulate(platform) as switch:
        assert read(switch, write_known_hosts(tmp_path, switch, switch.host_key)).vlans == VlanSet()


@pytest.mark.parametrize("platform", OVER_SSH)
@pytest.mark.parametrize("contents", [OTHER_KEY, None], ids=["another key", "no key"])
def test_sbf_logs_in_to_no_switch_with_an_unknown_key(platform: str, contents: str | None, tmp_path: Path) -> None:
    with emulate(platform) as switch:
        file = write_known_hosts(tmp_path, switch, contents) if contents else tmp_path / "known_hosts"
        with pytest.raises(
            Unsafe, match=r"shows an SSH host key that .*known_hosts does not contain for this device: nothing was"
        ):
            read(switch, file)
        assert switch.commands == []
