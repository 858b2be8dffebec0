"""Tests of ``select_public_keys``: SBF accepts every selected key, and lines without an acceptable key are omitted."""

import subprocess
from pathlib import Path

import pytest

from virtcloud.jobs.public_keys import MAX_KEYS, select_public_keys
from virtcloud.model.errors import BadInput
from virtcloud.model.ssh_keys import UserKey

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"


@pytest.mark.parametrize(("kind", "bits"), [("ed25519", 256), ("ecdsa", 384), ("rsa", 2048), ("rsa", 1024)])
def test_a_key_is_selected_exactly_if_sbf_accepts_it(tmp_path: Path, kind: str, bits: int) -> None:
    argv = ["ssh-keygen", "-q", "-N", "", "-t", kind, "-b", str(bits), "-f", str(tmp_path / "key")]
    subprocess.run(argv, check=True)  # noqa: S603 - our own
    line = (tmp_path / "key.pub").read_text()
    try:
        accepted = [" ".join(UserKey(line).split(" ")[:2])]
    except BadInput:
        accepted = []
    assert select_public_keys([line]) == accepted


@pytest.mark.parametrize(
    "line",
    ["", "# x", "ssh-dss AAAAB3NzaC1kc3MAAACB", f'command="x" {ED25519}', ED25519[:-8], "-----BEGIN PRIVATE KEY-----"],
)
def test_other_lines_are_omitted(line: str) -> None:
    assert select_public_keys([f"{line}\n{ED25519} jiří@home\n"]) == [ED25519]


def test_a_key_in_two_files_is_selected_once() -> None:
    assert select_public_keys([ED25519, f"{ED25519} again"]) == [ED25519]


def test_the_number_of_keys_is_limited() -> None:
    lines = [f"{ED25519[:-2]}{number:02d}" for number in range(20)]
    assert len(select_public_keys(lines)) == MAX_KEYS
