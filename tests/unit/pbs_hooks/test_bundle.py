"""Tests of the bundle of a hook: one file that needs only Python 3.6 or later, and its standard library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.old_python import assert_syntax_of_python_3_6

import pbs_hooks.openpbs.hooks
from pbs_hooks.bundle import bundle_hook, bundle_program

FILES = sorted(Path(pbs_hooks.openpbs.hooks.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_hook_modules_have_the_syntax_of_python_3_6(file: Path) -> None:
    assert_syntax_of_python_3_6(file.read_text())


def test_the_bundle_has_the_syntax_of_python_3_6() -> None:
    for source in _sources(bundle_hook("server")).values():
        assert_syntax_of_python_3_6(source)


def test_a_bundle_imports_only_the_standard_library_and_itself() -> None:
    text = bundle_hook("server")
    sources = _sources(text)
    for name, source in {**sources, "head": text}.items():
        for module in _imports(source):
            is_standard = module.partition(".")[0] in {*sys.stdlib_module_names, "pbs"}
            assert is_standard or module in sources, (name, module)


def test_module_names_are_unique_to_a_version() -> None:
    names = _sources(bundle_hook("server"))
    roots = {name.partition(".")[0] for name in names}
    assert len(roots) == 1
    assert roots.pop().startswith("_virtcloud_")


def test_bundling_is_deterministic() -> None:
    assert bundle_hook("server") == bundle_hook("server")


def test_a_bundle_contains_pyyamls_licence() -> None:
    assert "Kirill Simonov" in bundle_hook("server")


def test_modules_load_on_demand_and_show_their_lines() -> None:
    last = (
        "import sys, traceback\n"
        "assert not [one for one in sys.modules if one.startswith('_virtcloud_')]\n"
        "try:\n"
        "    load(SOURCES, LOADER, ENTRY).parse_bytes('no size')\n"
        "except ValueError:\n"
        "    print(traceback.format_exc())\n"
    )
    program = bundle_program("virtcloud.jobs.sizes", last)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=program, capture_output=True, text=True, check=True, cwd="/"
    )
    assert "raise ValueError(text)" in ran.stdout


def test_modules_load_after_pbs_cleared_the_hooks_names() -> None:
    program = bundle_program("pbs_hooks.openpbs.hooks.user_files", "load(SOURCES, LOADER, ENTRY)\n")
    later = (
        "import sys\n"
        "names = {}\n"
        f"exec({program!r}, names)\n"
        "names.clear()\n"
        "user = next(module for name, module in sys.modules.items() if name.endswith('hooks.user_files'))\n"
        "print(user._parse_yaml('a: [1]'))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-OO", "-"], input=later, capture_output=True, text=True, check=False, cwd="/"
    )
    assert (ran.stdout, ran.stderr) == ("{'a': ['1']}\n", "")


def _sources(text: str) -> dict[str, str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SOURCES":
            sources: dict[str, str] = ast.literal_eval(node.value)
            return sources
    raise AssertionError("the bundle has no SOURCES")


def _imports(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return names
