import subprocess
from pathlib import Path

import pytest

from virtcloud.model.errors import BadInput
from virtcloud.model.ssh_keys import UserKey, parse_user_keys

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
MORE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3AAAAAA=="
"""A key whose encoded data has another field after the public key."""
SECRET = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW"  # noqa: S105 - no real key
PRIVATE = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\n"


def keygen(folder: Path, kind: str, bits: int) -> tuple[str, str]:
    file = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", kind, "-b", str(bits), "-f", file], check=True)  # noqa: S603, S607 - our own
    shown = subprocess.run(["ssh-keygen", "-lf", file], check=True, capture_output=True, text=True)  # noqa: S603, S607 - our own
    return file.with_suffix(".pub").read_text(), shown.stdout.split()[1]


@pytest.mark.parametrize(("kind", "bits"), [("ed25519", 256), ("ecdsa", 256), ("ecdsa", 521), ("rsa", 2048)])
def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path, kind: str, bits: int) -> None:
    public, fingerprint = keygen(tmp_path, kind, bits)
    assert UserKey(public).fingerprint == fingerprint


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    public, _ = keygen(tmp_path, "rsa", 1024)
    with pytest.raises(BadInput, match=r"RSA key of at least 2048 bits, got 1024 bits: .*-t ed25519"):
        UserKey(public)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PRIVATE, "a private key, which was not stored: use the file that ends in .pub"),
        (f"PuTTY-User-Key-File-3: ssh-ed25519\n{SECRET}\n", "a private key"),
        (f"---- BEGIN SSH2 PUBLIC KEY ----\n{SECRET}", "another format: 'ssh-keygen -i"),
        (f"ssh-dss {SECRET}", "a DSA key"),
        (f'command="ls" {ED25519}', "options"),
        (SECRET, "other text"),
        (" \n", "no text"),
    ],
)
def test_other_text_is_refused_without_showing_it(text: str, found: str) -> None:
    with pytest.raises(BadInput, match=f"expected a public SSH key.*{found}") as raised:
        UserKey(text)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("damaged", [ED25519[:-8], ED25519.replace("ssh-ed25519 ", "ssh-rsa "), ED25519 + "AAAA", MORE])
def test_damaged_data_is_refused(damaged: str) -> None:
    with pytest.raises(BadInput, match="expected complete data of the"):
        UserKey(damaged)


def test_spaces_and_comments_are_normalized() -> None:
    assert UserKey(f" {ED25519.replace(' ', chr(9))}  jiří at home \r\n") == f"{ED25519} ji?? at home"


def test_a_file_may_contain_several_keys() -> None:
    assert parse_user_keys(f"# mine\n\n{ED25519} a\r\n{ED25519} b\n", "keys") == [f"{ED25519} a", f"{ED25519} b"]


def test_a_byte_order_mark_is_no_part_of_a_key() -> None:
    assert parse_user_keys(f"\ufeff{ED25519} a\r\n", "keys") == [f"{ED25519} a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "keys: expected a public SSH key.*, got no key"),
        (f"{ED25519}\nrubbish\n", "keys:2: expected a public SSH key.*, got other text"),
        (f"{ED25519}\n{PRIVATE}", "keys: expected a public SSH key.*, got a private key"),
    ],
)
def test_a_file_with_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        parse_user_keys(text, "keys")
    assert SECRET not in str(raised.value)
