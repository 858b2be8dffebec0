"""Tests of the progress bar in a terminal, in a notebook and in a pipe."""

import io
import sys
from types import ModuleType

import pytest
from rich.console import Console
from support.fake_machine.clusters import view

from virtcloud.client.progress_bar import ProgressBar
from virtcloud.model.cluster import ClusterSpec, ClusterState

SPEC = ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h1"]})


def shown(console: Console) -> str:
    with ProgressBar(console) as bar:
        for state in (ClusterState.CONFIGURING, ClusterState.ACTIVE):
            bar(view("demo", SPEC, state))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_terminal_shows_the_elements_that_are_missing() -> None:
    output = shown(Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None))
    assert "demo is configuring, waiting for brno-sw and 1 more" in output
    assert "0/2" in output
    assert "demo is active" in output
    assert "2/2" in output


def test_a_pipe_shows_nothing() -> None:
    assert shown(Console(file=io.StringIO(), force_terminal=False, force_jupyter=False)) == ""


def test_a_notebook_shows_the_bar_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython and ipywidgets are replaced, because they are not installed here."""
    displayed: list[object] = []
    display, widgets = ModuleType("IPython.display"), ModuleType("ipywidgets")
    display.display = displayed.append  # type: ignore[attr-defined]

    class Output:
        """The area in which a notebook displays the bar."""

        def clear_output(self, *, wait: bool) -> None:
            assert wait

        def __enter__(self) -> None:
            """Display all output in this area from now on."""

        def __exit__(self, *_error: object) -> None:
            """Display later output outside this area."""

    widgets.Output = Output  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    shown(Console(file=io.StringIO(), force_jupyter=True))
    texts = [str(one._repr_mimebundle_([], [])["text/html"]) for one in displayed if hasattr(one, "_repr_mimebundle_")]
    assert any("demo is active" in text for text in texts)
