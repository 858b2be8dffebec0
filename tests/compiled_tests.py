"""A plug-in for ``pytest --compile-tests``, which compiles all test modules and runs no test.

pytest stores the compiled modules. ``pytest --collect-only`` also stores them, but takes longer, because it imports
them.
"""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

FOLDER = Path(__file__).parent
PATTERNS = ("test_*.py", "conftest.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compile-tests", action="store_true", help="compile all test modules and run no test")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """If the option is set, compile the modules whose stored compilation is missing or outdated."""
    if not config.getoption("--compile-tests"):
        return None
    state = config.stash[rewrite.assertstate_key]
    for module in (path for pattern in PATTERNS for path in FOLDER.rglob(pattern)):
        stored = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(module, stored) is None:
            source, code = rewrite._rewrite_test(module, config)
            rewrite.try_makedirs(stored.parent)
            rewrite._write_pyc(state, code, source, stored)
    return 0
