"""Tests of the documentation's website, which ``make site`` builds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOREIGN = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""HTML elements whose target a browser loads from another host.

The pattern does not match ``<a>``: a browser loads the target of this element only if the reader follows the link.
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / "setup/mkdocs.yml", "-d", folder],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


def test_the_site_contains_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    expected = {path.with_name("index.html") if path.stem == "README" else path for path in pages}
    assert expected - {path.relative_to(site) for path in site.rglob("*.html")} == set()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = [path.read_text() for path in site.rglob("*.html")]
    assert [found for page in pages for found in FOREIGN.findall(page) if 'rel="canonical"' not in found] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert [found for style in styles for found in re.findall(r"url\([\"']?(?:https?:)?//[^)]*", style)] == []
