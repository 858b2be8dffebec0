"""Bugs planted in the real code: one function is replaced by a copy of it in which some text is another."""

import ast
import inspect
from types import ModuleType

import pytest


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replace the function or method of ``module`` that contains ``old``, which must be there exactly once."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has this {source.count(old)} times: {old!r}"
    owner, name = _function_at(ast.parse(source), source[: source.index(old)].count("\n") + 1)
    copy: dict[str, object] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), copy)  # noqa: S102 - our own code
    found = vars(copy[owner]) if owner else copy
    function = found[name]
    copy.update(vars(module))  # all that the copy of the function calls is the real one
    monkeypatch.setattr(getattr(module, owner) if owner else module, name, function)


def _function_at(tree: ast.Module, line: int) -> tuple[str | None, str]:
    """Find the class, if any, and the function in which a line is."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inner:
            if isinstance(one, ast.FunctionDef) and one.lineno <= line <= (one.end_lineno or one.lineno):
                return (node.name if isinstance(node, ast.ClassDef) else None), one.name
    raise AssertionError(f"line {line} is in no function")
