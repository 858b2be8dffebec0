"""Tests of the memory of the agent's process."""

import subprocess
import sys

FREE_LARGE_BLOCKS = """
from pathlib import Path
from virtcloud.agent.own_memory import reduce_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

reduce_memory()
bytes(400_000)  # without a fixed threshold, glibc would then take blocks of this size from its heap
before = resident_mb()
blocks, last = [b"x" * 200_000 for _ in range(200)], b"x" * 100_000
del blocks
print(resident_mb() - before)
"""
COLLECT = """
import gc
from virtcloud.agent.own_memory import reduce_memory
reduce_memory()
print(len(gc.get_objects()))
"""


def _run(code: str) -> float:
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))  # noqa: S603 - our own


def test_freed_memory_of_large_blocks_returns_to_the_kernel() -> None:
    assert _run(FREE_LARGE_BLOCKS) < 5


def test_collections_skip_the_imported_modules() -> None:
    assert _run(COLLECT) < 100
