"""Tests of confirmations that report errors of single clusters."""

from datetime import timedelta

from sbf_fakes.world import World, spec

from sbf_service.store.confirmations import ElementClusterErrors, confirm_revision, read_blocked_clusters
from sbf_service.store.revisions import require_element

UNKNOWN = frozenset(f"unknown-{number}" for number in range(40_000))
"""IDs of unknown clusters. The test uses them twice, so they exceed PostgreSQL's limit of 65,535 parameters."""


def test_a_report_may_exceed_the_number_of_statement_parameters(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    demo = world.view("demo").id
    with world.store.change() as unit:
        revision = require_element(unit, "brno-h1").wanted_revision
        errors = ElementClusterErrors("", blocked=UNKNOWN | {demo}, remaining=UNKNOWN)
        confirm_revision(unit, "brno-h1", revision, timedelta(seconds=60), None, errors)
    with world.store.read() as unit:
        assert read_blocked_clusters(unit, "brno-h1") == (demo,)
