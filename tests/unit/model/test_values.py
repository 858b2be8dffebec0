import pytest

from virtcloud.model.errors import BadInput
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
    "text", ["", "192.0.2.10:999999", "192.0.2.10:65536", "192.0.2.10:0", "192.0.2.10:ssh", "sw 1", "[::1", ":22"]
)
def test_a_malformed_address_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"expected an address such as 192\.0\.2\.10"):
        DeviceAddress(text)
