"""Tests of the output of ``virtcloud cluster run``, which runs a command on many guests."""

import io

import pytest
from support.cli_calls import RunCommand

from virtcloud.cli.cluster_run import MAX_LINE_BYTES, PrefixedOutput
from virtcloud.cli.options import split_names


class Terminal(io.BytesIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedPipe(io.BytesIO):
    """A pipe whose reader has closed its end."""

    def write(self, data: object) -> int:
        raise BrokenPipeError


def show(*pieces: bytes, stream: io.BytesIO | None = None) -> bytes:
    shown = stream or io.BytesIO()
    sink = PrefixedOutput(shown, io.BytesIO()).open_sink("g1")
    for piece in pieces:
        sink.write_stdout(piece)
    sink.close()
    return shown.getvalue()


def test_each_line_begins_with_the_guests_name() -> None:
    assert show(b"a\nb", b"c\n\nd") == b"g1: a\ng1: bc\ng1: \ng1: d\n"


def test_lines_of_two_guests_are_not_mixed() -> None:
    shown = io.BytesIO()
    output = PrefixedOutput(shown, io.BytesIO())
    one, two = output.open_sink("g1"), output.open_sink("g2")
    one.write_stdout(b"half")
    two.write_stdout(b"whole\n")
    one.write_stdout(b" line\n")
    assert shown.getvalue() == b"g2: whole\ng1: half line\n"


def test_standard_error_stays_on_its_own_stream() -> None:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    PrefixedOutput(stdout, stderr).open_sink("g1").write_stderr(b"bad\n")
    assert (stdout.getvalue(), stderr.getvalue()) == (b"", b"g1: bad\n")


def test_an_endless_line_is_printed_in_parts() -> None:
    part = b"x" * (MAX_LINE_BYTES + 1)
    assert show(part, b"end") == b"g1: " + part + b"\ng1: end\n"


def test_binary_output_reaches_a_pipe_unchanged() -> None:
    assert show(b"\xff\x00\x1b\n") == b"g1: \xff\x00\x1b\n"


def test_binary_output_cannot_control_a_terminal() -> None:
    assert show(b"\xff\x1b[2J\r\n", stream=Terminal()) == "g1: \ufffd\ufffd[2J\n".encode()


def test_a_reader_that_leaves_ends_the_command() -> None:
    output = PrefixedOutput(ClosedPipe(), io.BytesIO())
    output.require_reader(None)
    output.open_sink("g1").write_stdout(b"line\n")
    with pytest.raises(BrokenPipeError):
        output.require_reader(None)


def test_names_are_repeated_or_separated_by_commas() -> None:
    assert split_names(("g1,g2", "g3", ","), "--guest", "guests") == ["g1", "g2", "g3"]


@pytest.mark.parametrize(
    "command", [("run", "demo", "-g", "", "--", "true"), ("cp", "demo", "-g", ",", "/etc/os-release", ":")]
)
def test_an_empty_list_of_guests_is_refused(run: RunCommand, command: tuple[str, ...]) -> None:
    result = run("cluster", *command)
    assert result.exit_code == 2
    assert result.stderr == (
        "virtcloud: --guest: expected names of guests, got an empty text; without --guest: all guests\n"
    )


@pytest.mark.parametrize("arguments", [["demo"], ["demo", "--jobs", "0", "--", "true"], ["demo", "--", " "]])
def test_bad_input_reaches_no_guest(run: RunCommand, arguments: list[str]) -> None:
    assert run("cluster", "run", *arguments).exit_code == 2
