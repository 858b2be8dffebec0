"""Tests of the limits of one call. A refusal names the exceeded limit."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, client, problem
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.bootstrap import SbfService
from sbf_service.domain.admission import RequestLimits

LIMITS = RequestLimits(body=2048, hosts=3, guests=2, sites=2, shares=1, addresses=1, keys=1)
KEYS = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"] * 2
LIMIT_NAME = "the limit is 'limits.{}' in the settings of this SBF"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.furnish()
    set_limits(installation, LIMITS)
    yield installation
    installation.close()


def set_limits(world: World, limits: RequestLimits) -> None:
    settings = world.service.settings.model_copy(update={"limits": limits})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))


def guest(name: str, **keys: object) -> dict[str, object]:
    return {"name": name, "host": "brno-h1", "image": "debian"} | keys


@pytest.mark.parametrize(
    ("key", "limit", "spec", "expected"),
    [
        ("hosts", "hosts", {"hosts": ["brno-h1", "brno-h2", "praha-h1", "praha-h2"]}, "3, got 4"),
        ("guests", "guests", {"guests": [guest("g1"), guest("g2"), guest("g3")]}, "2, got 3"),
        ("sites", "sites", {"sites": ["brno", "praha", "plzen"]}, "2, got 3"),
        ("shares_with", "shares", {"hosts": ["brno-h1"], "shares_with": ["bob", "eva"]}, "1, got 2"),
        ("authorized_keys", "keys", {"hosts": ["brno-h1"], "authorized_keys": KEYS}, "1, got 2"),
        ("addresses", "addresses", {"guests": [guest("g1", addresses=["10.0.0.1/24", "10.0.1.1/24"])]}, "1, got 2"),
    ],
)
def test_a_spec_beyond_a_limit_is_refused_with_the_limit(
    world: World, key: str, limit: str, spec: dict[str, Any], expected: str
) -> None:
    answer = ask(world, "PUT", "/v1/clusters/demo", {"spec": {"owner": "alice"} | spec})
    assert problem(answer) == (
        422,
        "beyond-limit",
        f"spec.{key}: expected at most {expected}; {LIMIT_NAME.format(limit)}",
    )
    assert ask(world, "GET", "/v1/clusters").json() == []


@pytest.mark.parametrize("path", ["/v1/clusters/demo", "/v1/clusters/demo?dry_run=true"])
def test_the_user_data_of_a_spread_counts_for_each_guest(world: World, path: str) -> None:
    set_limits(world, RequestLimits())
    text = "#cloud-config\na: " + "x" * 16367  # 16 KiB
    spread = {"count": 300, "image": "debian", "user_data": text, "memory_mb": 16}
    answer = ask(world, "PUT", path, {"spec": {"owner": "alice", "spread": spread}})
    detail = (
        "spec: expected at most 2097152 bytes of user_data in all guests together, got 4915200: use shorter texts, or "
        f"put files into the image; {LIMIT_NAME.format('user_data')}"
    )
    assert problem(answer) == (422, "beyond-limit", detail)
    assert ask(world, "GET", "/v1/clusters").json() == []


def test_equal_user_data_counts_for_each_guest(world: World) -> None:
    set_limits(world, RequestLimits(user_data=66))
    text = "#cloud-config\na: žž\n"  # 22 bytes
    guests = [guest(f"a{number}", user_data=text) for number in range(3)]
    spread = {"count": 1, "image": "debian", "user_data": text}
    answer = ask(world, "PUT", "/v1/clusters/demo", {"spec": {"owner": "alice", "guests": guests, "spread": spread}})
    assert problem(answer)[:2] == (422, "beyond-limit")
    answer = ask(world, "PUT", "/v1/clusters/demo", {"spec": {"owner": "alice", "guests": guests}})
    assert answer.status_code == 201


def test_a_host_named_twice_counts_twice(world: World) -> None:
    answer = ask(world, "PUT", "/v1/clusters/demo", {"spec": {"owner": "alice", "hosts": ["brno-h1"] * 4}})
    assert problem(answer)[:2] == (422, "beyond-limit")


REMEDY = "raise it, or send less (a topology: one site at a time, with 'virtcloud topology set FILE --site NAME')"
TOO_LONG = (413, "beyond-limit", f"body: expected at most 2048 bytes, got more; {LIMIT_NAME.format('body')}: {REMEDY}")


def test_a_declared_length_beyond_the_limit_is_refused(world: World) -> None:
    assert problem(ask(world, "PUT", "/v1/clusters/demo", {"spec": "x" * 3000})) == TOO_LONG


def test_a_body_without_declared_length_is_counted(world: World) -> None:
    chunks: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1000):
            chunks.append(100)
            yield b" " * 100

    async def call() -> httpx.Response:
        async with client(world.service) as http:
            return await http.put("/v1/clusters/demo", content=pieces(), headers={"content-type": "application/json"})

    assert problem(asyncio.run(call())) == TOO_LONG


def test_a_cluster_above_a_lowered_limit_can_be_shared(world: World) -> None:
    world.put("demo", spec("brno-h1", "brno-h2", "praha-h1"))
    assert ask(world, "PUT", "/v1/clusters/demo/shares/bob").status_code == 200
    assert problem(ask(world, "PUT", "/v1/clusters/demo/shares/eva"))[:2] == (422, "beyond-limit")


def put_faults(world: World, number: int) -> list[str]:
    answer = ask(world, "PUT", "/v1/topology", {"name": "core", "links": [0] * number, "sites": [{"name": "brno"}]})
    status, slug, detail = problem(answer)
    assert (status, slug) == (422, "bad-input")
    return detail.splitlines()


def test_an_answer_lists_at_most_a_hundred_faults(world: World) -> None:
    set_limits(world, RequestLimits())
    lines = put_faults(world, 150)
    assert len(lines) == 101
    assert lines[99].startswith("links.99: ")
    assert lines[100] == "and 50 more"


def test_a_body_with_too_many_faults_gets_their_number(world: World) -> None:
    """The description of 200,000 faults would take half a gigabyte of memory."""
    set_limits(world, RequestLimits())
    assert put_faults(world, 200_000) == ["body: expected at most 10000 faults, got 200000: correct the document"]
