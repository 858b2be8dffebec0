import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROWS = re.findall(
    r"^\| \*\*(.+?)\*\*([^|]*)\| (.+) \| (.+) \|$", (ROOT / "docs/reference/glossary.md").read_text(), re.MULTILINE
)


def test_the_glossary_has_at_most_sixty_terms_each_once() -> None:
    terms = [term + note.rstrip() for term, note, _, _ in ROWS]
    assert len(terms) == len(set(terms))
    assert 40 <= len(terms) <= 60


def test_every_module_in_the_glossary_exists() -> None:
    places = [place for *_, where in ROWS for place in re.findall(r"`([a-z_]+/[a-z_/.]+)`", where)]
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []
