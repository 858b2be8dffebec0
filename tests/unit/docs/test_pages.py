"""The pages of the documentation: every link leads somewhere, and every decision has a number of its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
DECISIONS = ROOT / "docs" / "decisions"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_decisions_are_numbered_without_gap_or_repetition_and_all_are_listed() -> None:
    files = sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))
    listed = re.findall(r"^\d+\. \[.*\]\((.*)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert listed == files


def test_every_page_is_reached_from_the_list_of_pages() -> None:
    listed = set(re.findall(r"\(([^)]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/0")} - {"README.md"} == listed
