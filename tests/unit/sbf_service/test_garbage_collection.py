"""Tests of the garbage collector's thresholds.

The thresholds apply to a whole process, so the tests start a separate process.
"""

import subprocess
import sys

POLLS = """
import gc
from collections import deque
from sbf_service.__main__ import COLLECTION_THRESHOLDS

gc.set_threshold(*COLLECTION_THRESHOLDS)
waiting, before = deque(maxlen=2_000), gc.get_stats()[2]["collections"]
for _ in range(6_000):
    waiting.append([[] for _ in range(70)])
print(gc.get_stats()[2]["collections"] - before)
"""


def test_waiting_polls_cause_no_full_collection() -> None:
    """Each of 6,000 polls creates 70 objects, and at most 2,000 polls wait at the same time."""
    found = subprocess.run([sys.executable, "-c", POLLS], check=True, capture_output=True, text=True)  # noqa: S603 - ours
    assert found.stdout == "0\n"
