"""Tests of the output of errors and unsaved configurations. Only tables shorten long texts."""

import pytest
from support.cli_calls import RunCommand
from support.fake_machine import clusters
from support.fake_machine.clusters import FakeSbf

from virtcloud.cli import printing
from virtcloud.model.views import ClusterView

LONG = (
    "switch brno-sw: sent 'write memory', the device answered 'startup-config file open failed (Device or resource "
    "busy)'"
)


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"trouble": LONG, "unsaved_since": "2026-01-01T12:00:00Z"}
    element = clusters.DOCUMENTS["/v1/elements/brno-sw"] | fields
    monkeypatch.setitem(clusters.DOCUMENTS, "/v1/elements/brno-sw", element)
    monkeypatch.setitem(clusters.DOCUMENTS, "/v1/elements", [element])


def test_a_long_text_is_truncated_and_ends_with_an_ellipsis() -> None:
    assert printing.shorten("x" * 81) == "x" * 81
    assert printing.shorten("y" * 99) == "y" * 80 + "…"
    assert printing.shorten(None) is None


@pytest.mark.usefixtures("unsaved")
def test_the_list_shows_unsaved_time_and_beginning_of_error(run: RunCommand) -> None:
    line = run("element", "list").stdout.splitlines()[1]
    assert "not saved since 2026-01-01" in line
    assert line.rstrip().endswith("…")
    assert "busy" not in line


@pytest.mark.usefixtures("unsaved")
def test_show_prints_an_elements_error_in_full(run: RunCommand) -> None:
    output = run("element", "show", "brno-sw").stdout
    assert f"trouble: {LONG}\n" in output
    assert "a restart would restore an older configuration" in output


@pytest.mark.usefixtures("unsaved")
def test_json_contains_the_error_in_full(run: RunCommand) -> None:
    assert LONG in run("element", "list", "--json").stdout


def test_a_long_error_is_printed_below_the_table(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")
    view = sbf.clusters["demo"]
    document = view.model_dump(mode="json")
    document["placements"][0]["trouble"] = LONG
    sbf.clusters["demo"] = ClusterView.model_validate(document)
    output = run("cluster", "show", "demo").stdout
    assert output.endswith(f"\n\n{LONG}\n")


def test_a_long_error_in_the_reason_is_printed_once(run: RunCommand, sbf: FakeSbf) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")
    document = sbf.clusters["demo"].model_dump(mode="json") | {
        "state": "failing",
        "reason": f"not set up in time: {LONG}",
    }
    document["placements"][0]["trouble"] = LONG
    sbf.clusters["demo"] = ClusterView.model_validate(document)
    assert run("cluster", "show", "demo").stdout.count(LONG) == 1
