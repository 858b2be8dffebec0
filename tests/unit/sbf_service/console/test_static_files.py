import re
from hashlib import sha256
from pathlib import Path

import pytest

from sbf_service.console.rendering import FOLDER, HTMX, STATIC_FOLDER

DECISION = Path(__file__).parents[4] / "docs/decisions/0076-web-console.md"
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))


def test_htmx_is_the_recorded_file() -> None:
    digest = sha256((STATIC_FOLDER / HTMX).read_bytes()).hexdigest()
    assert digest in DECISION.read_text()
    assert "Zero-Clause BSD" in (STATIC_FOLDER / "htmx-LICENSE.txt").read_text()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_contain_nothing_that_the_policy_forbids(template: Path) -> None:
    text = template.read_text()
    assert re.findall(r"\sstyle=|\son\w+=|<style|<script(?![^>]*src=)|https?://|\|\s*safe", text) == []
