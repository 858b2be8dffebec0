"""Tests of a profile that is used at two gateways: the gateway of the older connection must end this connection."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.vpn_world import furnish, grants_of, make_profile
from support.sbf_fakes.world import World, make_world, spec

from virtcloud.model.access import Role

OLDER, NEWER = "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:03Z"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path))
    installation.put("demo", spec("brno-h1"))
    installation.settle()
    yield installation
    installation.close()


@pytest.fixture
def profile(world: World) -> str:
    return str(make_profile(world, world.token(Role.USER, "alice")).json()["id"])


def report(world: World, gateway: str, *connections: tuple[str, str]) -> None:
    rows = [
        {"profile": profile, "protocol": "udp", "remote": "192.0.2.7:40000", "connected_at": connected_at}
        for profile, connected_at in connections
    ]
    path = f"/v1/elements/{gateway}/vpn/connections"
    assert ask(world, "PUT", path, {"connections": rows}).status_code == 204
    world.clock.advance(1)


def replaced(world: World) -> list[str | None]:
    """Return for each gateway the time when its replaced connection began, or None if no connection was replaced."""
    grants = [grants_of(world, gateway)[0] for gateway in ("brno-gw", "brno-gw2")]
    return [grant.model_dump(mode="json").get("replaced") for grant in grants]


def test_the_older_of_two_connections_is_replaced(world: World, profile: str) -> None:
    report(world, "brno-gw", (profile, OLDER))
    report(world, "brno-gw2", (profile, NEWER))
    assert replaced(world) == [OLDER, None]


def test_the_gateway_of_the_older_connection_gets_a_new_document(world: World, profile: str) -> None:
    report(world, "brno-gw", (profile, OLDER))
    before = [world.element(gateway).wanted_revision for gateway in ("brno-gw", "brno-gw2")]
    report(world, "brno-gw2", (profile, NEWER))
    after = [world.element(gateway).wanted_revision for gateway in ("brno-gw", "brno-gw2")]
    assert after == [before[0] + 1, before[1]]


def test_a_repeated_report_changes_no_document(world: World, profile: str) -> None:
    report(world, "brno-gw", (profile, OLDER))
    report(world, "brno-gw2", (profile, NEWER))
    before = world.element("brno-gw").wanted_revision
    report(world, "brno-gw2", (profile, NEWER))
    report(world, "brno-gw", (profile, OLDER))
    assert (world.element("brno-gw").wanted_revision, replaced(world)) == (before, [OLDER, None])


def test_an_older_connection_that_is_reported_late_is_replaced(world: World, profile: str) -> None:
    report(world, "brno-gw2", (profile, NEWER))
    before = world.element("brno-gw").wanted_revision
    report(world, "brno-gw", (profile, OLDER))
    assert (world.element("brno-gw").wanted_revision, replaced(world)) == (before + 1, [OLDER, None])


def test_a_gateway_with_a_wrong_clock_loses_no_connection(world: World, profile: str) -> None:
    """The device moved to a gateway whose clock is slow, so the later report contains the earlier connection time."""
    report(world, "brno-gw", (profile, NEWER))
    world.clock.advance(60)
    report(world, "brno-gw2", (profile, OLDER))
    assert replaced(world) == [None, None]


def test_the_only_remaining_connection_of_a_profile_is_not_replaced(world: World, profile: str) -> None:
    report(world, "brno-gw", (profile, OLDER))
    report(world, "brno-gw2", (profile, NEWER))
    report(world, "brno-gw2")
    assert replaced(world) == [None, None]
