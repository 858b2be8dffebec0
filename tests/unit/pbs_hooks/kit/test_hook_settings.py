import json
from pathlib import Path

import pytest

from pbs_hooks.kit.hook_settings import SettingsError, read_settings, validate_settings
from pbs_hooks.openpbs.hooks.openpbs_settings import SERVER_SETTINGS, read_server_settings
from pbs_hooks.openpbs.install import BUNDLED_SOURCES
from virtcloud.model.errors import BadInput


def test_missing_settings_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"sbf": "https://sbf.example/"}))
    found = read_server_settings(str(tmp_path / "c.json"))
    assert found.sbf == "https://sbf.example"
    assert (found.timeout, found.breaker, found.retry_after, found.setup) == (2.0, 60, 120, 600)
    assert (found.token_file, found.longest_walltime) == ("/etc/virtcloud/pbs.token", 604800)


def test_every_fault_names_key_and_expectation() -> None:
    with pytest.raises(SettingsError) as caught:
        validate_settings({"sbf": "sbf.example", "timeout": 5, "colour": "red"}, SERVER_SETTINGS)
    known, address = ", ".join(SERVER_SETTINGS), "SBF's address: https://host, http://host:port or unix:///path"
    assert str(caught.value).splitlines() == [
        f"the hook's settings: expected one of {known}, got 'colour'",
        f"the hook's setting sbf: expected {address}, got 'sbf.example'",
        "the hook's setting timeout: expected seconds from 0.1 to 2, got 5",
    ]


def test_every_fault_names_the_kind_of_settings() -> None:
    with pytest.raises(BadInput) as caught:
        BUNDLED_SOURCES.check("server", {"sbf": "sbf.example", "timeout": 5})
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["server", "server"]


def test_a_server_hook_without_an_address_names_the_option() -> None:
    with pytest.raises(BadInput) as caught:
        BUNDLED_SOURCES.check("server", {"timeout": 5})
    lines = str(caught.value).splitlines()
    assert [line.partition(": expected")[0] for line in lines] == [
        "server: the hook's setting sbf",
        "server: the hook's setting timeout",
        "server: to set SBF's address, run: virtcloud pbs install --sbf https://HOST:PORT",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"], ids=["empty", "a list", "incomplete", "not text"])
def test_a_file_without_a_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match="the hook's settings: expected a"):
        read_settings(str(tmp_path / "c.json"), SERVER_SETTINGS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("token_file", "relative"),
        ("longest_walltime", "long"),
        ("longest_walltime", 3600),
        ("timeout", True),
        ("hosts", {"n1": 1}),
        ("hosts", []),
        ("images", 5),
        ("retry_after", 0),
    ],
)
def test_an_invalid_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"the hook's setting {key}: expected"):
        validate_settings({"sbf": "http://sbf", key: value}, SERVER_SETTINGS)
