import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, FakeSbf

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


def test_memory_is_parsed_in_the_notation_of_batch_systems(run: RunCommand, sbf: FakeSbf) -> None:
    run("quota", "set", "alice", "--guests", "20", "--memory", "64gb")
    assert sbf.put == [("/v1/quotas/alice", {"guests": 20, "memory_mb": 65536})]


def test_malformed_memory_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("quota", "set", "alice", "--memory", "much")
    assert (result.exit_code, sbf.put) == (2, [])
    assert "expected 0, or a size of at least 1mb, such as 64gb, got 'much'" in result.stderr


@pytest.mark.parametrize(("size", "reason"), [("1kb", ""), ("1000", ": a number without a unit is in bytes")])
def test_a_limit_below_one_mib_is_not_rounded_to_zero(run: RunCommand, sbf: FakeSbf, size: str, reason: str) -> None:
    result = run("quota", "set", "alice", "--images", size)
    assert (result.exit_code, sbf.put) == (2, [])
    assert f"expected 0, or a size of at least 1mb, such as 64gb, got '{size}'{reason}\n" in result.stderr
