import logging

import pytest
from pydantic import SecretStr

from sbf_service.log import get_log


def test_an_event_is_one_line_of_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        get_log("test").info("port_tagged", element="sw1", vlan=100, said="% Invalid input")
    assert caplog.messages == ["port_tagged element=sw1 vlan=100 said='% Invalid input'"]


def test_a_secret_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    password = SecretStr("hunter2")
    with caplog.at_level(logging.INFO):
        get_log("test").info("login", password=password, all=[password])
    assert caplog.messages == ["login password=********** all=\"[SecretStr('**********')]\""]
    assert f"{password} {password!r}" == "********** SecretStr('**********')"
    assert password.get_secret_value() == "hunter2"


def test_a_fault_shows_where_it_happened(caplog: pytest.LogCaptureFixture) -> None:
    get_log("test").fault("sweep_fault", ValueError("no such thing"), element="sw1")
    assert "sweep_fault element=sw1" in caplog.text
    assert "ValueError: no such thing" in caplog.text


@pytest.mark.parametrize(
    ("path", "logged"), [("/a\rb", "'/a\\rb'"), ("/\x1b[2J", "'/\\x1b[2J'"), ("/a\u2028b", "'/a\\u2028b'")]
)
def test_a_path_cannot_forge_lines(caplog: pytest.LogCaptureFixture, path: str, logged: str) -> None:
    get_log("test").warning("denied", path=path)
    assert caplog.messages == [f"denied path={logged}"]
