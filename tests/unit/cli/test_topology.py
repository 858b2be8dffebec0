"""Tests of ``virtcloud topology``. ``set`` prints a difference before it replaces the topology or one site's part."""

import json
from pathlib import Path

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, TOPOLOGY, FakeSbf

from virtcloud.cli import confirmation

PART = {"site": {"name": "brno", "switches": [{"name": "s", "ports": ["p"], "platform": "x"}]}}
CHANGED = {"site": {"name": "brno", "switches": [{"name": "s", "ports": ["p", "p2"], "platform": "x"}]}}
OTHER = {"name": "other", "sites": TOPOLOGY["sites"]}


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "/v1/sites/brno/topology", PART)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)


def test_the_difference_is_printed_before_the_topology_is_set(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", stdin=json.dumps(OTHER | {"version": 7}))
    assert result.stderr.splitlines()[:5] == [
        "--- topology (current)",
        "+++ topology (new)",
        "@@ -1,4 +1,4 @@",
        "-name: small",
        "+name: other",
    ]
    assert sbf.put[-1][0] == "/v1/topology"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "outcome"), [("n", (1, [])), ("y", (0, ['"7"']))])
def test_confirmation_on_a_terminal_replaces_the_printed_version(
    run: RunCommand, sbf: FakeSbf, tmp_path: Path, answer: str, outcome: tuple[int, list[str]]
) -> None:
    (tmp_path / "t.json").write_text(json.dumps(OTHER))
    result = run("topology", "set", str(tmp_path / "t.json"), stdin=f"{answer}\n")
    assert (result.exit_code, sbf.matched) == outcome
    assert "Change topology? [y/N]" in result.stderr


def test_a_file_without_a_version_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", stdin=json.dumps(OTHER))
    assert (result.exit_code, [path for path, _ in sbf.put if path == "/v1/topology"]) == (2, [])
    assert "<stdin>: expected the version of the topology on which the file is based, got none" in result.stderr


def test_a_file_without_a_version_is_refused_without_a_difference(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", stdin=json.dumps(OTHER))
    assert (result.stdout, sbf.put) == ("", [])
    assert "+name: other" not in result.stderr


def test_a_sites_part_is_shown_with_its_version(run: RunCommand) -> None:
    lines = run("topology", "show", "--site", "brno").stdout.splitlines()
    assert lines[:3] == ["version: abc", "site:", "  name: brno"]


def test_only_the_part_of_one_site_is_set(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", "--site", "brno", stdin=json.dumps(CHANGED | {"version": "abc"}))
    assert (result.exit_code, result.stdout) == (0, "site brno: 1 element, 0 links\n")
    assert "+    - p2" in result.stderr
    assert (sbf.put[-1][0], sbf.matched) == ("/v1/sites/brno/topology", ['"abc"'])


def test_a_part_of_another_site_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", "--site", "praha", stdin=json.dumps(CHANGED))
    assert (result.exit_code, sbf.put) == (2, [])
    assert "<stdin>: site.name: expected praha, got brno" in result.stderr


def test_a_sites_dry_run_shows_the_difference_only(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "set", "-", "--site", "brno", "--dry-run", stdin=json.dumps(CHANGED))
    assert "+    - p2" in result.stdout
    assert result.stdout.endswith("nothing was changed\n")
    assert not [path for path, _ in sbf.put if not path.endswith("dry-run")]


def test_diff_shows_differences_and_ends_with_1(run: RunCommand, sbf: FakeSbf) -> None:
    result = run("topology", "diff", "-", stdin=json.dumps(OTHER))
    assert (result.exit_code, sbf.put) == (1, [])
    assert result.stdout.splitlines()[3:5] == ["-name: small", "+name: other"]


@pytest.mark.parametrize(("options", "document"), [((), TOPOLOGY), (("--site", "brno"), PART)])
def test_diff_of_equal_topologies_ends_with_0(
    run: RunCommand, options: tuple[str, ...], document: dict[str, object]
) -> None:
    result = run("topology", "diff", "-", *options, stdin=json.dumps(document))
    assert (result.exit_code, result.stdout) == (0, "no difference\n")


def test_changed_paths_are_printed_before_the_topology_is_set(run: RunCommand, sbf: FakeSbf) -> None:
    path = {"cluster": "demo", "add": ["sw1:p2"], "remove": ["sw1:p1"]}
    sbf.change_preview = {"paths": [path]}
    result = run("topology", "set", "-", stdin=json.dumps(OTHER | {"version": 7}))
    assert "the path of cluster demo changes:\n  - sw1:p1\n  + sw1:p2\n" in result.stderr
