"""Tests of the man pages in setup/share, which docs/generate.py writes."""

import os
import subprocess
from pathlib import Path

import click
import pytest

from sbf_command import main as sbf
from virtcloud.cli import main as virtcloud

ROOT = Path(__file__).parents[3]
SHARE = ROOT / "setup/share"
PAGES = SHARE / "man/man1"


def test_man_formats_all_pages_without_a_warning() -> None:
    pages = sorted(map(str, PAGES.iterdir()))
    done = subprocess.run(  # noqa: S603 - our own
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", *pages],  # noqa: S607
        env=os.environ | {"MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(("program", "group"), [("virtcloud", virtcloud), ("sbf", sbf)])
def test_every_command_is_in_a_man_page(program: str, group: click.Group) -> None:
    for name in group.list_commands(click.Context(group)):
        page = PAGES / (f"{program}-{name}.1" if program == "virtcloud" else f"{program}.1")
        assert f"{program} {name}" in page.read_text(), page
