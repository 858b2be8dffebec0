"""Tests of reports that name more clusters than a database statement can have parameters."""

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec

from virtcloud.model.cluster import ClusterState

MANY = 70_000
"""More clusters than a statement may have parameters: 32,766 in SQLite, 65,535 in PostgreSQL."""


@pytest.fixture
def unknown() -> dict[str, str]:
    return {f"unknown{number}": "no memory" for number in range(MANY)}


def test_a_report_of_many_refusals_fails_the_known_cluster(world: World, unknown: dict[str, str]) -> None:
    world.put("demo", spec("brno-h1"))
    report = {"revision": 2, "message": "no memory", "refused": {**unknown, world.view("demo").id: "no memory"}}
    assert ask(world, "POST", "/v1/elements/brno-h1/trouble", report).status_code == 204
    assert world.view("demo").state is ClusterState.FAILING


@pytest.mark.parametrize("key", ["incomplete", "remaining"])
def test_a_confirmation_may_exclude_many_clusters(world: World, unknown: dict[str, str], key: str) -> None:
    answer = ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1, key: unknown})
    assert answer.status_code == 204, answer.text
