"""Tests of the tour of the source: all modules that the tour names exist, and a creation passes through 14 of them."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
from sbf_fakes.http_calls import ask, body
from sbf_fakes.world import World

from virtcloud.model.access import Role

ROOT = Path(__file__).parents[3]
TOUR = (ROOT / "docs/explanation/tour.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:virtcloud|sbf_service|pbs_hooks)/[\w/.]+)`", TOUR)))
SECTION = TOUR.partition("### From HTTP to the answer 201\n")[2].partition("\n### ")[0]
MODULES_OF_A_CREATION = set(re.findall(r"`(sbf_service/[\w/]+\.py)`", SECTION))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(f"sqlite:///{tmp_path / 'sbf.db'}")
    made.furnish()
    return made


def test_every_module_of_the_tour_exists() -> None:
    assert [name for name in NAMED if not (ROOT / name).exists()] == []


def test_the_tour_follows_both_requests() -> None:
    assert {"sbf_service/http/routes/clusters.py", "pbs_hooks/openpbs/hooks/runjob.py"} <= set(NAMED)


def test_fourteen_modules_decide_about_a_new_cluster() -> None:
    assert len(MODULES_OF_A_CREATION) == 14


def test_a_creation_passes_through_the_modules_of_the_tour(world: World) -> None:
    called: set[str] = set()

    def record(frame: FrameType, _event: str, _argument: object) -> None:
        called.add(frame.f_code.co_filename)

    token = world.token(Role.USER, "alice")
    threading.settrace(record)
    sys.settrace(record)
    try:
        answer = ask(world, "PUT", "/v1/clusters/demo", body("brno-h1", "praha-h1"), token=token)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    assert answer.status_code == 201
    assert {name for name in MODULES_OF_A_CREATION if str(ROOT / name) not in called} == set()
    world.close()
