"""Planted bugs: `plant` replaces a function of the real code by a copy of the function with changed source text."""

import ast
import inspect
from types import ModuleType

import pytest


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replace ``old`` by ``new`` in a function or method. ``old`` must occur exactly once in ``module``."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has this {source.count(old)} times: {old!r}"
    owner, name = _function_at(ast.parse(source), source[: source.index(old)].count("\n") + 1)
    copy: dict[str, object] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), copy)  # noqa: S102 - the code of this project
    found = vars(copy[owner]) if owner else copy
    function = found[name]
    copy.update(vars(module))  # the copied function calls the real module's other functions
    monkeypatch.setattr(getattr(module, owner) if owner else module, name, function)


def _function_at(tree: ast.Module, line: int) -> tuple[str | None, str]:
    """Return the names of the class, if any, and of the function that contain a line."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inner:
            if isinstance(one, ast.FunctionDef) and one.lineno <= line <= (one.end_lineno or one.lineno):
                return (node.name if isinstance(node, ast.ClassDef) else None), one.name
    raise AssertionError(f"line {line} is in no function")
