"""Tests of the lab's demonstration, which succeeds only if at least one claim was checked and all claims were true."""

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

import virtcloud.cli.lab
from virtcloud.cli import main
from virtcloud.lab import Lab, LabFailed
from virtcloud.lab.demo import chapters
from virtcloud.lab.demo.report import DemoReport


@pytest.fixture
def report() -> DemoReport:
    ticks = iter(range(100))
    return DemoReport(Console(file=io.StringIO(), width=100), clock=lambda: float(next(ticks)))


def print_table(report: DemoReport) -> str:
    report.console.print(report.table())
    assert isinstance(report.console.file, io.StringIO)
    return report.console.file.getvalue()


def test_a_report_of_true_claims_succeeds(report: DemoReport) -> None:
    with report.chapter("One"):
        report.check("water is wet", is_true=True)
        report.check("fire is hot", is_true=True)
    assert report.succeeded
    assert "│ 1 │ One     │ 1.0     │ 2      │" in print_table(report)


def test_one_false_claim_fails_the_demonstration_with_its_observation(report: DemoReport) -> None:
    with report.chapter("One"):
        report.check("water is wet", is_true=True)
        report.check("fire is cold", False, "40 °C")
    assert not report.succeeded
    text = print_table(report)
    assert "✗ fire is cold: 40 °C" in text
    assert "1 failed" in text


def test_a_report_without_checks_fails(report: DemoReport) -> None:
    with report.chapter("One"):
        report.print_line("no claim")
    assert not report.succeeded


@pytest.mark.parametrize(("is_true", "code"), [(True, 0), (False, 1)])
def test_the_commands_exit_code_is_the_result(monkeypatch: pytest.MonkeyPatch, is_true: bool, code: int) -> None:
    def run_demo(report: DemoReport, bring_up: Callable[[], Lab]) -> bool:
        with report.chapter("One"):
            report.check("fire is hot", is_true, "cold")
        return report.succeeded

    monkeypatch.setattr(virtcloud.cli.lab, "run_demo", run_demo)
    result = CliRunner().invoke(main, ["lab", "demo"])
    assert (result.exit_code, "Chapters of the demonstration" in result.output) == (code, True)


class FakeLab:
    """A lab that starts, and then answers no request."""

    state = SimpleNamespace()
    is_down = False

    def status(self) -> dict[str, object]:
        raise LabFailed("the lab does not answer")

    def down(self) -> None:
        self.is_down = True


def test_the_lab_is_taken_down_after_an_error(report: DemoReport, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = FakeLab()
    monkeypatch.setattr(chapters, "find_remains", lambda _: [])
    with pytest.raises(LabFailed):
        chapters.run_demo(report, lambda: lab)  # type: ignore[arg-type,return-value]
    assert lab.is_down
