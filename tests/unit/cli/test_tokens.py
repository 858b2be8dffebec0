"""Tests of ``virtcloud token``."""

from pathlib import Path

import pytest
from cli_calls import RunCommand

from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import NewToken


def test_a_token_that_cannot_be_written_is_named(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"id": "k3qh7x2a", "name": "eva", "role": "user", "token": "vc_k3qh7x2a_x", "created_by": "root"}
    new = NewToken.model_validate({**made, "created_at": "2026-07-01T12:00:00Z"})
    monkeypatch.setattr(SbfClient, "create_token", lambda *_: new)
    result = run("token", "create", "eva", "--role", "user", "--output", "/dev/null/eva.token")
    assert result.exit_code == 2
    assert result.stderr.endswith("; token k3qh7x2a is lost: virtcloud token revoke k3qh7x2a\n")


def test_no_token_is_created_for_an_existing_file(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SbfClient, "create_token", lambda *_: pytest.fail("a token was created"))
    (tmp_path / "eva.token").write_text("vc_older\n")
    result = run("token", "create", "eva", "--role", "user", "--output", str(tmp_path / "eva.token"))
    assert result.exit_code == 2
    assert "eva.token: expected a new file, but the file exists; " in result.stderr


def test_a_complete_token_is_not_repeated_in_the_error(run: RunCommand) -> None:
    result = run("token", "revoke", "vc_k3qh7x2a_secret")
    assert result.exit_code == 2
    assert "expected the ID of a token, got a complete token: its ID is " in result.stderr
    assert "secret" not in result.stderr
