"""Tests of a cluster whose stored spec this version of SBF cannot read, for example after a downgrade."""

import json

import pytest
from sbf_fakes.http_calls import ask, problem
from sbf_fakes.world import World, spec
from sqlalchemy import select

from sbf_service.store.cluster_tables import ClusterRow


@pytest.fixture
def cluster_id(world: World) -> str:
    """The ID of the cluster ``later``, whose spec has a key of a later version. The switch also carries ``known``."""
    for key in ("known", "later"):
        world.put(key, spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        row = unit.session.scalars(select(ClusterRow).where(ClusterRow.key == "later")).one()
        row.spec = json.dumps(json.loads(row.spec) | {"later_key": 1})
        row.resolved = None
        return row.id


def test_the_agent_gets_no_document_without_the_cluster(
    world: World, cluster_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With such a document, the agent would remove the network. The error changes nothing on the host."""
    status, slug, _ = problem(ask(world, "GET", "/v1/elements/brno-h1/wanted"))
    assert (status, slug) == (500, "error")
    assert f"cluster later (ID {cluster_id}): this version of SBF cannot read the stored spec" in caplog.text
    assert "install the version of SBF that stored the spec, or a later version" in caplog.text


@pytest.mark.usefixtures("cluster_id")
def test_the_switch_keeps_all_networks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.switches["brno-sw1"].carried()
    assert before["p1"] == "100-101"
    world.put("other", spec("brno-h2"))
    world.settle()
    assert world.switches["brno-sw1"].carried() == before
    assert "cluster later (ID" in caplog.text


@pytest.mark.usefixtures("cluster_id")
def test_other_elements_get_their_changes(world: World) -> None:
    world.put("other", spec("praha-h1"))
    world.settle()
    assert world.view("other").state == "active"
