import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from support.sbf_fakes.http_calls import body, client
from support.sbf_fakes.world import World

from virtcloud.model.access import Role

ROOT = Path(__file__).parents[3]
TOUR = (ROOT / "docs/explanation/tour.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:virtcloud|sbf_service|pbs_hooks)/[\w/.]+)`", TOUR)))
TABLE = TOUR.partition("### All modules of this call\n")[2].partition("\n### ")[0]
MODULES_OF_A_CREATION = re.findall(r"`((?:virtcloud|sbf_service)/[\w/]+\.py)`", TABLE)


def test_every_module_of_the_tour_exists() -> None:
    assert [name for name in NAMED if not (ROOT / name).exists()] == []


def test_the_tour_follows_both_requests() -> None:
    assert {"sbf_service/http/routes/clusters.py", "pbs_hooks/openpbs/hooks/runjob.py"} <= set(NAMED)


def test_the_table_of_a_creation_has_each_module_once() -> None:
    assert len(MODULES_OF_A_CREATION) == len(set(MODULES_OF_A_CREATION))


def test_a_creation_calls_exactly_the_modules_of_the_table(tmp_path: Path) -> None:
    # a new process, because threads of earlier tests may still run in this process
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        called = pool.submit(_record_creation, tmp_path / "sbf.db").result()
    assert called == set(MODULES_OF_A_CREATION)


def _record_creation(database: Path) -> set[str]:
    world = World(f"sqlite:///{database}")
    world.furnish()
    http = client(world.service, world.token(Role.USER, "alice"))
    asyncio.run(http.get("/healthz"))  # FastAPI analyses the routes at the first call
    _clear_caches()  # a function with a cached result would not be called
    called: set[str] = set()
    with _recorded(called):
        answer = asyncio.run(http.put("/v1/clusters/demo", json=body("brno-h1", "praha-h1")))
    world.close()
    assert answer.status_code == 201
    return called


def _clear_caches() -> None:
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in {"virtcloud", "sbf_service"}]
    for function in (value for module in modules for value in vars(module).values()):
        if callable(clear := getattr(function, "cache_clear", None)):
            clear()


@contextmanager
def _recorded(called: set[str]) -> Iterator[None]:
    """Record the product's modules whose functions run in this thread, or in threads that start within the block."""

    def record(frame: FrameType, _event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in {"virtcloud", "sbf_service"}:
            called.add(str(path.relative_to(ROOT)))

    threading.settrace(record)
    sys.settrace(record)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
