"""Where a lab is required, what is not tested is a failure. This is the one place that decides it."""

import os
from collections.abc import Generator

import pytest

REQUIRED = "VIRTCLOUD_REQUIRE_LAB"  # set in CI


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a lab test that would be skipped fail instead, with the reason it gave."""
    report = yield
    if (
        report.skipped
        and item.get_closest_marker("lab")
        and os.environ.get(REQUIRED)
        and not hasattr(report, "wasxfail")
    ):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{REQUIRED} is set, and this would not be tested: {reason}"
    return report
