from collections.abc import Mapping
from datetime import timedelta

from support.sbf_fakes.world import World, spec

from sbf_service.store.elements.confirmations import (
    MAX_ERROR_CHARACTERS,
    ElementClusterErrors,
    confirm_revision,
    read_blocked_clusters,
)
from sbf_service.store.elements.revisions import require_element

UNKNOWN = frozenset(f"unknown-{number}" for number in range(40_000))
"""IDs of unknown clusters. Used twice, they exceed PostgreSQL's limit of 65,535 parameters."""


def test_a_report_may_exceed_the_number_of_statement_parameters(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    demo = world.view("demo").id
    with world.store.change() as unit:
        revision = require_element(unit, "brno-h1").wanted_revision
        errors = ElementClusterErrors("", blocked=UNKNOWN | {demo}, remaining=UNKNOWN)
        confirm_revision(unit, "brno-h1", revision, timedelta(seconds=60), None, errors)
    with world.store.read() as unit:
        assert read_blocked_clusters(unit, "brno-h1") == (demo,)


def test_the_network_of_an_unremoved_member_is_blocked(world: World) -> None:
    """An agent that has only this member of the network reports the failed removal under the network's ID."""
    world.put("net", spec("brno-h2"))
    world.put("member", spec(hosts=["brno-h1"], joins="net"))
    world.settle()
    net, member = world.view("net").id, world.view("member").id
    world.dead_hosts = {"brno-h1"}
    world.delete("member")
    with world.store.change() as unit:
        revision = require_element(unit, "brno-h1").wanted_revision
        errors = ElementClusterErrors("", remaining=frozenset({net}))
        confirm_revision(unit, "brno-h1", revision, timedelta(seconds=60), None, errors)
    with world.store.read() as unit:
        assert read_blocked_clusters(unit, "brno-h1") == tuple(sorted([net, member]))


def test_the_network_of_a_member_that_waits_is_not_blocked(world: World) -> None:
    world.put("net", spec("brno-h2"))
    world.put("member", spec(hosts=["brno-h1"], joins="net"))
    member = world.view("member").id
    confirm(world, {member: "fetches the image (10%)"})
    with world.store.read() as unit:
        assert read_blocked_clusters(unit, "brno-h1") == (member,)


def test_a_clusters_version_increases_if_only_its_own_error_changes(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    demo = world.view("demo").id
    confirm(world, {demo: "fetches the image (10%)"})
    version = world.view("demo").version
    confirm(world, {demo: "fetches the image (20%)"})
    assert world.view("demo").version > version


def confirm(world: World, errors: Mapping[str, str]) -> None:
    with world.store.change() as unit:
        revision = require_element(unit, "brno-h1").wanted_revision
        found = ElementClusterErrors("x" * MAX_ERROR_CHARACTERS, errors, blocked=frozenset(errors))
        confirm_revision(unit, "brno-h1", revision, timedelta(seconds=60), None, found)
