"""The agent's netlink tests on the lab's kernel, which has all required features."""

import sys
from pathlib import Path

import pytest

from virtcloud.lab import Lab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
FILES = ("tests/unit/agent/network/test_kernel.py", "tests/unit/agent/network/kernel_with_tags.py")
OPTIONS = "-q -p no:cacheprovider --strict-markers -k 'not packet_filter_of_bridges'"  # not in the lab's kernel
PYTEST = f"cd {ROOT} && exec {sys.executable} -m pytest {OPTIONS} {' '.join(FILES)}"


def test_segments_are_built_on_a_kernel_with_802_1q(lab: Lab) -> None:
    """All selected tests run on a host of the lab, and none of them is skipped there."""
    done = lab.run("praha-h2", ("env", "PYTHONDONTWRITEBYTECODE=1", "sh", "-c", PYTEST), timeout_s=200)
    assert done.returncode == 0, done.stdout
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("12 passed, 1 deselected in"), done.stdout
