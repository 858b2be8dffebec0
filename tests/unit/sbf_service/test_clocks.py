"""Tests that decisions depend on the database's clock, not on the clock of a replica's computer.

SQLite runs in SBF's process, so its clock is the clock of SBF's computer. `read_database_clock` therefore reads this
clock without a statement.
"""

import ast
from pathlib import Path

import pytest

import sbf_service

SOURCE = Path(sbf_service.__file__).parent
LOCAL_CLOCKS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"), ("time", "time")}
READER = "store/tables/columns.py:read_database_clock"


def find_local_clocks(module: Path) -> list[str]:
    """Return each function of a module that reads a local clock. The name of a module's other code is empty."""
    tree = ast.parse(module.read_text("utf-8"))
    functions = {
        node: function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    return [
        f"{module.relative_to(SOURCE)}:{functions.get(node, '')}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in LOCAL_CLOCKS
    ]


@pytest.mark.parametrize("folder", ["domain", "store", "reconcile"])
def test_leases_and_deadlines_read_no_local_clock(folder: str) -> None:
    """Migrations are excluded. They record the time of a conversion, but no decision uses this time."""
    modules = [module for module in (SOURCE / folder).rglob("*.py") if "migrations" not in module.parts]
    assert modules
    assert {found for module in modules for found in find_local_clocks(module)} <= {READER}
