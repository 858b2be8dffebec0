"""Tests of warnings about files with secrets that all local users can read."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sbf_service.secret_files import find_public_mode, log_readable_secrets
from sbf_service.settings import ServiceSettings, read_settings

ALL_KEYS = """
tls_certificate = "{0}/x.crt"
tls_key = "{0}/x"
[credentials.brno]
username = "sbf"
key_file = "{0}/x"
password = {{file = "{0}/x"}}
enable = {{file = "{0}/x"}}
[console.oidc]
issuer = "https://login.example.org"
client_id = "sbf"
client_secret = {{file = "{0}/x"}}
[console.oidc.roles]
user_claim = "uid"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's temporary folders."""
    with TemporaryDirectory(prefix="virtcloud-secrets-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def write_secret(folder: Path, mode: int) -> Path:
    path = folder / "x"
    path.write_text("hunter2")
    path.chmod(mode)
    return path


def test_each_readable_secret_is_logged_with_mode_and_remedy(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, config = write_secret(folder, 0o644), folder / "sbf.toml"
    config.write_text(ALL_KEYS.format(folder))
    log_readable_secrets(read_settings(config), config)
    keys = ["tls_key", *(f"credentials.brno.{key}" for key in ("key_file", "password.file", "enable.file"))]
    keys.append("console.oidc.client_secret.file")
    warned = [record.getMessage() for record in caplog.records]
    assert [line.partition(" mode=")[0] for line in warned] == [
        f"secret_file_readable file={path} key={key}" for key in keys
    ]
    assert all(f"mode=0644 remedy='chmod 640 {path} (or 600), and replace the secret" in line for line in warned)
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("database", "is_logged"),
    [
        ("postgresql://sbf:hunter2@db/sbf", True),
        ("postgresql://sbf@db/sbf?passfile=/etc/virtcloud/pgpass", False),
    ],
)
def test_a_settings_file_is_secret_if_it_contains_a_password(
    folder: Path, caplog: pytest.LogCaptureFixture, database: str, is_logged: bool
) -> None:
    log_readable_secrets(ServiceSettings(database=database), write_secret(folder, 0o644))
    assert (f"secret_file_readable file={folder}/x key=database" in caplog.text) is is_logged
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o641])
def test_a_group_may_read_a_secret(folder: Path, mode: int) -> None:
    assert find_public_mode(write_secret(folder, mode)) is None


def test_a_file_in_a_closed_folder_is_not_public(folder: Path) -> None:
    path = write_secret(folder, 0o644)
    assert find_public_mode(path) == 0o644
    folder.chmod(0o750)
    assert find_public_mode(path) is None


def test_an_absent_file_is_not_public(folder: Path) -> None:
    assert find_public_mode(folder / "absent") is None
