"""Tests of ``virtcloud quota`` and ``token``: usage and limits of a user, the parsing of limits, and lost tokens."""

from pathlib import Path

import pytest
from cli_calls import RunCommand
from fake_machine.clusters import DOCUMENTS, FakeSbf

from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import NewToken

LIMITS = {"clusters": 4, "guests": 20, "memory_mb": 65536}
QUOTA = {"user": "alice", "limits": LIMITS, "own": {}, "clusters": 2, "networks": 1, "guests": 3, "memory_mb": 768}


def test_a_quota_is_shown_with_the_usage(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/quotas/alice", QUOTA)
    output = run("quota", "show", "alice").stdout.splitlines()
    assert [cell.strip() for cell in output[1].split("  ") if cell.strip()] == [
        "alice",
        "2 of 4",
        "1",
        "3 of 20",
        "0",
        "768 of 65536 MiB",
        "no limit",
        "no limit",
        "0 MiB",
    ]


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


def test_memory_is_parsed_in_the_notation_of_batch_systems(run: RunCommand, sbf: FakeSbf) -> None:
    run("quota", "set", "alice", "--guests", "20", "--memory", "64gb")
    assert sbf.put == [("/v1/quotas/alice", {"guests": 20, "memory_mb": 65536})]


def test_malformed_memory_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("quota", "set", "alice", "--memory", "much")
    assert (result.exit_code, sbf.put) == (2, [])
    assert "expected a size such as 64gb or 512mb, got 'much'" in result.stderr


def test_a_limit_below_one_mib_is_not_rounded_to_zero(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("quota", "set", "alice", "--images", "1kb")
    assert (result.exit_code, sbf.put) == (2, [])
    assert "expected 0 or at least 1mb, got '1kb'" in result.stderr
