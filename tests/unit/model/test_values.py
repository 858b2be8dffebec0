import pytest

from virtcloud.model.document import Document
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.gateway_access import Destination
from virtcloud.model.port_use import PortUse
from virtcloud.model.values import DeviceAddress


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("192.0.2.10", "192.0.2.10", None),
        ("192.0.2.10:2222", "192.0.2.10", 2222),
        ("sw1.example.org:65535", "sw1.example.org", 65535),
        ("2001:db8::1", "2001:db8::1", None),
        ("[2001:db8::1]", "2001:db8::1", None),
        ("[2001:db8::1]:22", "2001:db8::1", 22),
    ],
)
def test_an_address_has_a_host_and_perhaps_a_port(text: str, host: str, port: int | None) -> None:
    assert (DeviceAddress(text).host, DeviceAddress(text).port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "192.0.2.10:999999",
        "192.0.2.10:65536",
        "192.0.2.10:0",
        "192.0.2.10:ssh",
        "sw 1",
        "[::1",
        ":22",
        "sw\x001",
        "sw\ud800",
    ],
)
def test_a_malformed_address_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"expected an address such as 192\.0\.2\.10"):
        DeviceAddress(text)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (PortUse, {"mode": "\ud800"}),
        (PortUse, {"lines": ["\ud800"]}),
        (Switch, {"name": "sw", "ports": ["p1"], "platform": "\ud800"}),
        (Destination, {"name": "a", "networks": ["192.0.2.0/24"], "ports": ["tcp/1"], "description": "\ud800"}),
    ],
)
def test_a_lone_surrogate_is_bad_input(kind: type[Document], document: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"expected text in Unicode, got the lone surrogate '\\ud800'"):
        kind(**document)
