"""Tests of confirmations that report errors of single clusters."""

from collections.abc import Mapping
from datetime import timedelta

from sbf_fakes.world import World, spec

from sbf_service.store.confirmations import (
    MAX_ERROR_CHARACTERS,
    ElementClusterErrors,
    confirm_revision,
    read_blocked_clusters,
)
from sbf_service.store.revisions import require_element

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
