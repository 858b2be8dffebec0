import re
from types import SimpleNamespace
from typing import cast

import pytest

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.transport.ssh import SshCommandLine, split_address
from virtcloud.model.errors import BadInput


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> str:
    line = SshCommandLine(cast("DeviceLogin", None), "cisco_ios")
    monkeypatch.setattr(line, "_guard", lambda _action: None)
    line._session = SimpleNamespace(base_prompt="e")
    return line.prompt


@pytest.mark.parametrize("text", ["e#", "e> ", "e(config-if-Et1/1)#", "<e>", "[e-Ten-GigabitEthernet1/0/1]", "e:~$ "])
def test_the_prompt_of_each_mode_is_detected(prompt: str, text: str) -> None:
    assert re.fullmatch(prompt, text, re.MULTILINE)


@pytest.mark.parametrize("text", ["enable secret 5 $", "e description uplink >", "exec banner #"])
def test_a_configuration_line_is_no_prompt(prompt: str, text: str) -> None:
    assert not re.search(prompt, text, re.MULTILINE)


def test_a_device_without_an_address_names_the_missing_key() -> None:
    with pytest.raises(BadInput, match="expected the key 'address' of this device in the topology, got none"):
        split_address(None)
