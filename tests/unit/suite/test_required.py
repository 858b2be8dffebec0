"""Tests of ``VIRTCLOUD_REQUIRE_LAB``.

A test that cannot find its lab or PostgreSQL is skipped. If the variable is set, the test fails instead.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import pytest

@pytest.fixture
def lab():
    pytest.skip("NO LAB: this machine has none")

@pytest.mark.lab
def test_of_a_fixture(lab): ...

@pytest.mark.lab
def test_of_its_own(): pytest.skip("NO LAB: not this one")

@pytest.mark.lab
@pytest.mark.skipif(True, reason="NO LAB: never")
def test_marked(): ...

@pytest.mark.lab
@pytest.mark.xfail(strict=True)
def test_known_to_fail(): assert False

@pytest.mark.postgresql
def test_of_a_database(): pytest.skip("NO POSTGRESQL: this machine has none")

def test_of_something_else(): pytest.skip("no printer")
"""


@pytest.mark.parametrize(
    ("required", "code", "verdict"),
    [("", 0, "5 skipped, 1 xfailed"), ("1", 1, "2 failed, 1 skipped, 1 xfailed, 2 errors")],
)
def test_a_required_test_that_is_skipped_fails(tmp_path: Path, required: str, code: int, verdict: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {CONFTEST.parent}\nmarkers =\n  lab\n  postgresql\n")
    ended = subprocess.run(  # noqa: S603 - runs pytest
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "VIRTCLOUD_REQUIRE_LAB": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1].strip("= ").partition(" in ")[0]) == (code, verdict)
    assert ("this would not be tested: " in ended.stdout) is bool(required)
