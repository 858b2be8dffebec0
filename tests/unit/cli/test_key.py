import json
from pathlib import Path

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS

from virtcloud.model.ssh_keys import UserKey

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
VIEW = {
    "user": "alice",
    "fingerprint": UserKey(KEY).fingerprint,
    "key": f"{KEY} alice@laptop",
    "added_at": "2026-11-20T07:12:03Z",
    "added_by": "alice",
}


def test_a_private_key_is_never_sent(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "id_ed25519"
    file.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----\n")
    result = run("key", "add", str(file), url="http://127.0.0.1:9")
    assert (result.exit_code, "b3BlbnNz" in result.output) == (2, False)
    assert "got a private key, which was not stored: use the file that ends in .pub" in result.stderr


def test_keys_are_listed_with_their_fingerprints(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/users/bob/keys", [VIEW])
    cells = run("key", "list", "--user", "bob").stdout.splitlines()[1].split()
    assert cells[:3] == [UserKey(KEY).fingerprint, "ssh-ed25519", "alice@laptop"]
    assert json.loads(run("key", "list", "--user", "bob", "--json").stdout) == [VIEW]
