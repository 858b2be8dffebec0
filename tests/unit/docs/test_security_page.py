import ast
import re
from functools import cache
from pathlib import Path

import pytest

from virtcloud.model.access import Role

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
STOLEN = "## What a stolen token can do"


@cache
def functions(path: str) -> frozenset[str]:
    file = ROOT / path
    nodes = ast.walk(ast.parse(file.read_text())) if file.exists() else ()
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_exists(path: str, name: str) -> None:
    assert name in functions(path)


def test_tests_on_the_page_are_named_with_their_paths() -> None:
    assert len(re.findall(r"test_\w+`", PAGE)) == len(re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE))


@pytest.mark.parametrize("role", Role)
def test_each_role_has_a_section_that_names_a_test(role: Role) -> None:
    _, _, stolen = PAGE.partition(f"{STOLEN}\n")
    section = stolen.partition("\n## ")[0].partition(f"\n### {role}\n")[2].partition("\n### ")[0]
    assert "`tests/" in section
