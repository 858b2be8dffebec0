import subprocess
import sys

from virtcloud.agent.own_memory import _list_unchanged_mappings

FREE_LARGE_BLOCKS = """
from pathlib import Path
from virtcloud.agent.own_memory import reduce_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

reduce_memory()
bytes(400_000)  # without a fixed threshold, glibc would take smaller blocks from its heap once this block is freed
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
FILES = """
from pathlib import Path
import virtcloud.agent.bootstrap
from virtcloud.agent.own_memory import reduce_memory

def resident_kib():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("RssFile"))

before = resident_kib()
reduce_memory()
print(resident_kib() / before)
"""
SMAPS = """\
1000-3000 r-xp 00002000 fe:00 42                         /usr/lib/libunchanged.so
Rss:                   8 kB
Anonymous:             0 kB
4000-6000 r--p 00002000 fe:00 42                         /usr/lib/librelocated.so
Anonymous:             4 kB
7000-8000 rw-p 00002000 fe:00 42                         /usr/lib/libdata.so
Anonymous:             0 kB
8000-9000 r--p 00000000 00:00 0
Anonymous:             0 kB
9000-a000 r--s 00000000 fe:00 43                         /var/cache/shared
Anonymous:             0 kB
"""
IMPORTS = """
import sys
sys.argv = ["virtcloud", "agent", "--config", "/missing.toml"]
from virtcloud.command import main
assert main() == 2
import virtcloud.agent.host_bootstrap
heavy = {
    *("alembic", "anyio", "click", "cryptography", "fastapi", "jinja2", "napalm", "netmiko", "opentelemetry"),
    *("pynetbox", "rich", "sbf_service", "scapy", "sqlalchemy", "tarfile", "uvicorn", "websockets"),
    *("httpx._main", "pyroute2.ndb", "virtcloud.cli", "virtcloud.lab", "virtcloud.netbox", "virtcloud.simulation"),
    *("virtcloud.client.sbf", "virtcloud.model.changes", "virtcloud.model.topology", "virtcloud.model.vlans"),
}
print(*(name for name in sorted(heavy) if sys.modules.get(name) is not None))
"""


def _run(code: str) -> float:
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))  # noqa: S603 - our own


def test_freed_memory_of_large_blocks_returns_to_the_kernel() -> None:
    assert _run(FREE_LARGE_BLOCKS) < 5


def test_garbage_collections_skip_the_imported_modules() -> None:
    assert _run(COLLECT) < 100


def test_library_pages_used_only_at_the_start_are_released() -> None:
    assert _run(FILES) < 0.5


def test_only_unchanged_mappings_of_files_are_released() -> None:
    """If the agent released a changed mapping, the mapping would lose its content."""
    assert list(_list_unchanged_mappings(SMAPS.splitlines())) == [(0x1000, 0x2000)]


def test_an_agent_imports_none_of_the_heavy_modules() -> None:
    assert subprocess.check_output([sys.executable, "-c", IMPORTS], text=True, stderr=subprocess.DEVNULL) == "\n"  # noqa: S603 - our own
