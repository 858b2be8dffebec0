"""Tests of the sources of secrets. Error messages name the source and never contain the secret."""

import logging
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sbf_service.credential_settings import SecretSource
from sbf_service.device_credentials import fetch_secret, find_credential_faults, make_login
from sbf_service.settings import ServiceSettings, read_settings
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadDocument, Refused

SECRET = "hunter2"  # noqa: S105 - the tests search messages for this value
SWITCH = Switch.model_validate({"name": "sw1", "platform": "fake", "ports": ["p1"], "credential": "site"})


def command(code: str) -> SecretSource:
    return SecretSource(command=(sys.executable, "-c", code))


def test_secrets_come_from_file_environment_or_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p").write_text(f"{SECRET}\n")
    monkeypatch.setenv("SWITCH_PASSWORD", SECRET)
    sources = [SecretSource(file=tmp_path / "p"), SecretSource(env="SWITCH_PASSWORD"), command(f"print('{SECRET}')")]
    assert [fetch_secret(source, 30).get_secret_value() for source in sources] == [SECRET] * 3


def test_a_trailing_space_belongs_to_the_secret(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(" a b \r\n")
    assert fetch_secret(SecretSource(file=tmp_path / "p"), 1).get_secret_value() == " a b "


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SecretSource(file=Path("/none")), "file /none cannot be read: No such file or directory"),
        (
            SecretSource(env="NO_SUCH"),
            "the service's environment variable NO_SUCH: expected a secret, got an empty text",
        ),
        (SecretSource(command=("/none", SECRET)), "command /none cannot be run: No such file or directory"),
        (command(f"print('{SECRET}'); raise SystemExit('{SECRET}')"), "exit code 1; run the command as"),
        (command(f"import sys; sys.stdout.buffer.write(b'{SECRET}' + bytes([255]))"), "expected output in utf-8"),
        (command("pass"), "expected a secret, got an empty text"),
    ],
)
def test_an_error_names_the_source_and_not_the_secret(source: SecretSource, message: str) -> None:
    with pytest.raises(Refused, match=message) as raised:
        fetch_secret(source, 30)
    error = raised.value
    assert SECRET not in f"{error!r} {error.__cause__!r}"


def test_a_hanging_command_times_out() -> None:
    with pytest.raises(Refused, match=re.escape(f"command {sys.executable} took longer than 0.2 s")) as raised:
        fetch_secret(command(f"import time; print('{SECRET}', flush=True); time.sleep(60)"), 0.2)
    assert SECRET not in repr(raised.value.__cause__)


@pytest.mark.parametrize("keys", [{}, {"file": "/x", "env": "X"}, {"command": []}, {"env": ""}, {"vault": "x"}])
def test_a_source_has_exactly_one_kind(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SecretSource.model_validate(keys)


def test_a_secret_in_the_settings_is_refused_without_repeating_it(tmp_path: Path) -> None:
    path = tmp_path / "sbf.toml"
    path.write_text(f'[credentials.site]\nusername = "sbf"\npassword = "{SECRET}"\n')
    with pytest.raises(BadDocument) as raised:
        read_settings(path)
    assert str(raised.value) == (
        f"{path}: credentials.site.password: expected the source of a secret, "
        "{file = …}, {env = …} or {command = […]}, got a value"
    )


def test_a_login_shows_no_secret_in_repr_or_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SWITCH_PASSWORD", SECRET)
    credential = {"username": "sbf", "password": {"env": "SWITCH_PASSWORD"}, "enable": {"env": "SWITCH_PASSWORD"}}
    settings = ServiceSettings.model_validate({"credentials": {"site": credential}})
    with caplog.at_level(logging.DEBUG):
        login = make_login(SWITCH, settings)
    assert login.password is not None
    assert login.password.get_secret_value() == SECRET
    assert SECRET not in f"{login!r} {login} {settings!r} {settings.model_dump_json()} {caplog.text}"


def test_an_unavailable_secret_is_reported_with_device_and_credential() -> None:
    settings = ServiceSettings.model_validate(
        {"credentials": {"site": {"username": "x", "password": {"env": "NO_SUCH"}}}}
    )
    with pytest.raises(Refused) as raised:
        make_login(SWITCH, settings)
    assert str(raised.value) == (
        "switch sw1: a secret of credential site: the service's environment variable NO_SUCH: "
        "expected a secret, got an empty text"
    )


@pytest.mark.parametrize("key", ["key_file", "known_hosts", "ca_file"])
def test_a_missing_credential_file_is_named_in_the_error(tmp_path: Path, key: str) -> None:
    credential = {"username": "x", key: str(tmp_path / "absent")}
    with pytest.raises(Refused) as raised:
        make_login(SWITCH, ServiceSettings.model_validate({"credentials": {"site": credential}}))
    assert str(raised.value) == (
        f"switch sw1: credential site: {key} {tmp_path}/absent cannot be read: No such file or directory; "
        "put the file there, readable by the service's user, or correct the service's settings"
    )


def test_all_faults_of_credentials_are_found_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    good = tmp_path / "good"
    good.write_text("secret")
    credentials = {
        "a": {"username": "x", "key_file": str(good), "password": {"file": str(good)}},
        "b": {"username": "x", "known_hosts": str(tmp_path / "absent"), "password": {"env": "ABSENT"}},
        "c": {
            "username": "x",
            "password": {"file": str(tmp_path / "absent")},
            "enable": {"command": ["absent"]},
        },
    }
    faults = find_credential_faults(ServiceSettings.model_validate({"credentials": credentials}))
    assert [(name, fault.split()[0]) for name, fault in faults] == [
        ("b", "known_hosts"),
        ("b", "password.env"),
        ("c", "password.file"),
        ("c", "enable.command"),
    ]
