"""The modules of hooks have the syntax of Python 3.6 and import only the standard library and each other."""

import ast
import sys
from pathlib import Path

import pytest
from support.old_python import assert_syntax_of_python_3_6

import virtcloud

HERE = Path(virtcloud.__file__).parents[1]
PARTS = ("virtcloud/jobs", "pbs_hooks/kit", "pbs_hooks/openpbs/hooks", "pbs_hooks/torque/scripts")
FILES = sorted(file for part in PARTS for file in (HERE / part).glob("*.py"))
BUNDLED = (*(part.replace("/", ".") for part in PARTS), "yaml.")  # the bundle contains PyYAML


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(HERE)) for file in FILES])
def test_modules_have_the_syntax_of_python_3_6(file: Path) -> None:
    assert_syntax_of_python_3_6(file.read_text())


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(HERE)) for file in FILES])
def test_modules_import_only_the_standard_library_and_each_other(file: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    foreign = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith(BUNDLED)} == set()
