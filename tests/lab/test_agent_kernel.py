"""The agent's netlink tests on the lab's kernel."""

import re
import sys
from pathlib import Path

import pytest

from virtcloud.lab import Lab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/unit/agent/network/test_kernel.py",
    "tests/unit/agent/network/kernel_with_tags.py",
    "tests/unit/agent/gateway/kernel_with_vpn.py",
)
OPTIONS = "-q -p pytest_timeout -p no:cacheprovider --strict-markers -k 'not packet_filter_of_bridges'"
"""Options of pytest. ``-k`` deselects the test of the bridges' packet filter, which the lab's kernel lacks."""
# pytest loads only the plug-in named in ``OPTIONS``, because imports take long in the lab.
ENVIRONMENT = ("PYTHONDONTWRITEBYTECODE=1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
FEWEST_TESTS = 19
PYTEST = f"cd {ROOT} && exec {sys.executable} -m pytest {OPTIONS} {' '.join(FILES)}"


def test_the_agents_kernel_tests_pass_in_the_lab(lab: Lab) -> None:
    result = lab.run("praha-h2", ("env", *ENVIRONMENT, "sh", "-c", PYTEST), timeout_s=200)
    assert result.returncode == 0, result.stdout
    summary = re.match(r"(\d+) passed, 1 deselected in", result.stdout.splitlines()[-1])
    assert summary is not None, result.stdout
    assert int(summary[1]) >= FEWEST_TESTS
