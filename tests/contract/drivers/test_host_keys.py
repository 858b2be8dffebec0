"""A device is spoken to only when its SSH host key is the one that administrators know."""

from pathlib import Path

import pytest
from emulators import emulate
from emulators.switch_device import EmulatedSwitch
from pydantic import SecretStr

from sbf_service.drivers.contract import DeviceLogin, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchObserved

OVER_SSH = ("arista_eos", "juniper_junos", "cisco_iosxr")
"""One for each library that looks at keys."""
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJSJZw4r0uCkyBAxxVvJAjHCGlLE3yqXdNmqYhFjrNdH"


def read(switch: EmulatedSwitch, known_hosts: Path) -> SwitchObserved:
    """Read the switch, believing only the keys of this file."""
    port = PortName(switch.port_names[0])
    element = SwitchElement(name=Name("sw1"), ports=(port,), platform=switch.platform, address=switch.address)
    secrets = {"password": SecretStr(switch.password), "enable": SecretStr(switch.secret)}
    driver = SWITCH_PLATFORMS[switch.platform].driver(
        DeviceLogin(element, switch.username, known_hosts=known_hosts, **secrets)
    )
    try:
        return driver.read(SwitchScope((port,), VlanSet.parse("100-199")))
    finally:
        driver.close()


def known(folder: Path, switch: EmulatedSwitch, key: str) -> Path:
    host, _, port = switch.address.partition(":")
    path = folder / "known_hosts"
    path.write_text(f"[{host}]:{port} {key}\n")
    return path


@pytest.mark.parametrize("platform", OVER_SSH)
def test_a_switch_with_the_key_that_is_known_is_read(platform: str, tmp_path: Path) -> None:
    with emulate(platform) as switch:
        assert read(switch, known(tmp_path, switch, switch.host_key)).vlans == VlanSet()


@pytest.mark.parametrize("platform", OVER_SSH)
@pytest.mark.parametrize("contents", [OTHER_KEY, None], ids=["another key", "no key"])
def test_a_switch_with_a_key_that_is_not_known_is_not_logged_in_to(
    platform: str, contents: str | None, tmp_path: Path
) -> None:
    with emulate(platform) as switch:
        file = known(tmp_path, switch, contents) if contents else tmp_path / "known_hosts"
        with pytest.raises(Unsafe, match=r"shows an SSH host key that .*known_hosts does not have for it: nothing was"):
            read(switch, file)
        assert switch.commands == []
