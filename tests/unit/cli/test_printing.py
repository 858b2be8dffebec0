import sys

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.cli import main, printing
from virtcloud.cli.printing import COLUMN_GAP, column_widths, wrap_text
from virtcloud.model.dialect_trial import TrialCommand

HEAD = ("cluster", "state", "VLANs", "reason")
ROWS = [
    ("demo", "active", "VLAN 100 at brno, praha", None),
    ("job-4711", "failed", "no VLAN", "not set up in time: host brno-h1 at brno has not confirmed"),
]
WORDS = st.lists(st.text("abc-,09", min_size=1, max_size=12), min_size=1, max_size=6).map(" ".join)


def print_on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int) -> list[str]:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    printing.print_table(HEAD, ROWS, "none")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_fits_and_breaks_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    lines = print_on_terminal(monkeypatch, capsys, width)
    words = {word for row in ROWS for cell in row if cell for word in cell.split()}
    assert words <= {word for line in lines for word in line.split()}
    assert max(map(len, lines)) <= width


def test_a_table_60_characters_wide_wraps_the_longest_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_on_terminal(monkeypatch, capsys, 60)[2:] == [
        "demo      active  VLAN 100 at brno,",
        "                  praha",
        "job-4711  failed  no VLAN               not set up in time:",
        "                                        host brno-h1 at brno",
        "                                        has not confirmed",
    ]


def test_a_row_becomes_a_list_if_words_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_on_terminal(monkeypatch, capsys, 30) == [
        "cluster: demo",
        "state: active",
        "VLANs: VLAN 100 at brno,",
        "  praha",
        "",
        "cluster: job-4711",
        "state: failed",
        "VLANs: no VLAN",
        "reason: not set up in time:",
        "  host brno-h1 at brno has not",
        "  confirmed",
    ]


def test_in_a_pipe_a_row_is_one_line_without_padding(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_table(HEAD, [("demo", "active", "100", None), ("b", "failed", "", "x" * 400)], "none")
    assert capsys.readouterr().out.splitlines() == [
        "cluster  state   VLANs  reason",
        "demo     active  100",
        "b        failed         " + "x" * 400,
    ]


def test_in_a_pipe_rows_with_empty_cells_are_single_lines(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_table(("key", "owner", "state", "reason"), [("a", "b", None, None)], "none")
    assert capsys.readouterr().out.splitlines() == ["key  owner  state  reason", "a    b"]


def test_a_pipe_gets_each_row_of_a_later_page_unwrapped(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [[TrialCommand(command="show")], [TrialCommand(command="show all of the interfaces")]]
    printing.print_pages(("sent", "lines"), pages, lambda one: (one.command, len(one.answer)), "none", as_json=False)
    assert capsys.readouterr().out.splitlines() == ["sent  lines", "show  0", "show all of the interfaces  0"]


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4), st.integers(20, 120))
def test_columns_are_as_wide_as_their_words_and_fit(rows: list[tuple[str, str, str]], width: int) -> None:
    widths = column_widths(rows, width)
    if widths is None:
        return
    assert sum(widths) + COLUMN_GAP * 2 <= width
    for row in rows:
        for cell, cell_width in zip(row, widths, strict=True):
            assert all(len(line) <= cell_width for line in wrap_text(cell, cell_width))
            assert " ".join(wrap_text(cell, cell_width)) == cell


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [(("clutser", "list"), "'cluster'"), (("cluster", "lits"), "'list'"), (("elment",), "'element'")],
)
def test_a_misspelt_command_suggests_the_most_similar_command(typed: tuple[str, ...], suggestion: str) -> None:
    result = CliRunner().invoke(main, typed)
    assert (result.exit_code, f"Did you mean {suggestion}?" in result.output) == (2, True)
