from pathlib import Path

import pytest

from sbf_service.settings import ServiceSettings, read_settings
from virtcloud.model.errors import BadDocument, BadInput

ALL_TABLES = """
database = "postgresql+psycopg://sbf@db/sbf"
listen = "0.0.0.0:8800"
socket = "/run/virtcloud/sbf.sock"
replica = "one"
workers = 8
[credentials.lab]
username = "switch"
key_file = "/etc/virtcloud/id_ed25519"
[timing]
connect_timeout = 5
drain_deadline = 0.5
"""


def write_settings(folder: Path, text: str) -> Path:
    path = folder / "sbf.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_settings_of_a_file_are_read(tmp_path: Path) -> None:
    settings = read_settings(write_settings(tmp_path, ALL_TABLES))
    assert settings.credentials["lab"].username == "switch"
    assert settings.timing.drain_deadline == 0.5
    assert settings.workers == 8


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_settings(write_settings(tmp_path, "")) == ServiceSettings()
    assert ServiceSettings().database == "sqlite:////var/lib/virtcloud/sbf.db"
    assert ServiceSettings().listen == "127.0.0.1:8800"


def test_every_invalid_key_is_named_with_the_file(tmp_path: Path) -> None:
    path = write_settings(tmp_path, 'listen = "here"\nlisten_too = 1\n[timing]\nread_timeout = 0\n')
    with pytest.raises(BadDocument) as caught:
        read_settings(path)
    assert str(caught.value).splitlines() == [
        f"{path}: listen: expected an address and a port such as 127.0.0.1:8800 (.+:[0-9]{{1,5}}), got 'here'",
        f"{path}: timing.read_timeout: expected greater than 0, got 0",
        f"{path}: listen_too: unknown key; check its spelling",
    ]


def test_invalid_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match=r"sbf.toml: not TOML: .*line 1"):
        read_settings(write_settings(tmp_path, "database = \n"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml: cannot be read: No such file or directory"):
        read_settings(tmp_path / "none.toml")


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "sbf.toml").write_bytes(b'\xef\xbb\xbfreplica = "one"\r\nworkers = 3\r\n')
    settings = read_settings(tmp_path / "sbf.toml")
    assert (settings.replica, settings.workers) == ("one", 3)
