import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.switches import FakeDriver, FakeSwitches
from support.sbf_fakes.world import SITES, World, make_world, spec, three_edges, three_sites

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.transport.device_session import CancelScope
from sbf_service.store.elements.leases import acquire_lease
from virtcloud.model.errors import Unreachable
from virtcloud.model.topology import Topology

POOL = "/v1/sites/brno/pool/dry-run"
TOPOLOGY = "/v1/topology/dry-run"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.furnish()
    installation.settle()
    yield installation
    installation.close()


def revisions(world: World) -> list[tuple[int, int]]:
    return [
        (element.wanted_revision, element.confirmed_revision)
        for element in map(world.element, ("brno-sw1", "praha-sw1"))
    ]


def test_a_pools_dry_run_reads_only_its_sites_switches(world: World) -> None:
    dry_run = ask(world, "POST", POOL, {"vlans": "100-149"}).json()
    assert [difference["element"] for difference in dry_run["elements"]] == ["brno-sw1"]
    assert dry_run["elements"][0]["read_at"] == "2026-01-01T00:00:00Z"


def test_a_pools_dry_run_shows_removed_vlans(world: World) -> None:
    world.switches["brno-sw1"].ports["p1"] = {145}
    dry_run = ask(world, "POST", POOL, {"vlans": "100-149"}).json()
    assert dry_run["elements"][0]["switch"]["remove"] == {"p1": "145"}
    assert [(use["ports"], use["vlans"], use["asks"]) for use in dry_run["other_use"]] == [(["p1"], "145", True)]


def test_a_dry_run_changes_neither_device_nor_database(world: World) -> None:
    world.switches["brno-sw1"].ports["p1"] = {145}
    before = (str(world.site("brno").pool), revisions(world), len(world.audit()))
    applied = len(world.switches["brno-sw1"].applied)
    ask(world, "POST", POOL, {"vlans": "100-149"})
    assert (str(world.site("brno").pool), revisions(world), len(world.audit())) == before
    assert len(world.switches["brno-sw1"].applied) == applied


def test_a_dry_run_refuses_what_the_change_refuses(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    status, _, detail = problem(ask(world, "POST", POOL, {"vlans": "120-139"}))
    assert (status, "100 by demo" in detail) == (409, True)


def test_a_silent_switch_is_reported_with_its_reason(world: World) -> None:
    world.switches["brno-sw1"].cut_off = True
    dry_run = ask(world, "POST", POOL, {"vlans": "100-149"}).json()
    assert dry_run["elements"] == []
    assert dry_run["unread"] == {"brno-sw1": "switch brno-sw1 (fake) does not answer: cut off; SBF tries again"}


def test_a_topologys_dry_run_reads_only_changed_switches(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][1]["switches"][0]["ports"].append("p9")
    dry_run = ask(world, "POST", TOPOLOGY, document).json()
    assert [difference["element"] for difference in dry_run["elements"]] == ["praha-sw1"]
    assert world.topology() == three_sites()


def test_a_topologys_dry_run_reads_new_switches(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw9", "platform": "fake", "ports": ["p1"]})
    world.switches["brno-sw9"].ports["p1"] = {120}
    dry_run = ask(world, "POST", TOPOLOGY, document).json()
    assert [(difference["element"], difference["switch"]["remove"]) for difference in dry_run["elements"]] == [
        ("brno-sw9", {"p1": "120"})
    ]
    assert "close" in world.switches["brno-sw9"].calls


def test_a_device_that_another_replica_uses_is_not_read(world: World) -> None:
    """On some platforms, a second session would discard the candidate configuration of the first session."""
    with world.store.change_row() as unit:
        acquire_lease(unit, "brno-sw1", "another", timedelta(seconds=30))
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.1"
    calls = list(world.switches["brno-sw1"].calls)
    dry_run = ask(world, "POST", TOPOLOGY, document).json()
    assert dry_run["unread"] == {"brno-sw1": "brno-sw1 is being reconciled by another replica: repeat the request"}
    assert world.switches["brno-sw1"].calls == calls


def test_a_dry_run_ends_a_conversation_at_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_until_cancelled(scope: CancelScope, _managed: object) -> None:
        while scope.remaining:
            time.sleep(0.01)
        raise Unreachable(scope.reason)

    def create(switches: FakeSwitches, login: DeviceLogin) -> FakeDriver:
        driver = FakeDriver(switches[login.device.name])
        monkeypatch.setattr(driver, "read", partial(read_until_cancelled, login.cancel_scope))
        return driver

    world = make_world(tmp_path, conversation_timeout=0.1)
    monkeypatch.setattr(FakeSwitches, "_driver", create)
    dry_run = ask(world, "POST", TOPOLOGY, three_sites().model_dump(mode="json")).json()
    assert dry_run["unread"] == {f"{site}-sw1": "the conversation was ended after 0.1 s" for site in SITES}
    world.close()


def test_the_first_topology_has_a_dry_run(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    dry_run = ask(world, "POST", TOPOLOGY, three_edges().model_dump(mode="json")).json()
    assert len(dry_run["elements"]) == 6
    world.close()


def test_dry_runs_of_topologies_change_nothing_in_the_service(world: World) -> None:
    document = three_sites().model_dump(mode="json") | {"name": "tried"}
    ask(world, "POST", TOPOLOGY, document)
    world.put_topology(Topology.model_validate(document | {"name": "set"}))
    assert world.topology().name == "set"


def test_a_topologys_dry_run_names_changed_paths(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["ports"].append("p9")
    document["links"][0]["b"] = "brno-sw1:p9"
    paths = ask(world, "POST", TOPOLOGY, document).json()["paths"]
    assert paths == [{"cluster": "demo", "add": ["brno-sw1:p9"], "remove": ["brno-sw1:p1"]}]


def test_a_change_that_breaks_paths_names_every_cluster(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    brno = document["sites"][0]
    brno["switches"][0]["ports"].append("p9")
    brno["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["p2", "p9"]})
    document["links"][1]["b"] = "brno-sw2:p2"
    between = {"a": "brno-sw1:p9", "b": "brno-sw2:p9"}
    world.put_topology(Topology.model_validate(document | {"links": [*document["links"], between]}))
    world.put("a", spec("brno-h1", "brno-h2"))
    world.put("b", spec("brno-h2", "praha-h1"))
    status, _, detail = problem(ask(world, "POST", TOPOLOGY, document))
    assert (status, detail.splitlines()) == (
        409,
        [
            f"the path of cluster {key} would break: switch brno-sw2 has no path to switch brno-sw1 within their site: "
            "link the switches; or end the cluster first"
            for key in "ab"
        ],
    )


def test_a_networks_site_must_keep_a_switch(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    wien = {"name": "wien", "switches": [{"name": "wien-sw1", "platform": "fake", "ports": ["p1"]}]}
    world.put_topology(Topology.model_validate(document | {"sites": [*document["sites"], wien]}))
    world.put_pool("wien", "100")
    world.put("demo", spec(sites=["wien"]))
    emptied = document | {"sites": [*document["sites"], {"name": "wien"}]}
    status, _, detail = problem(ask(world, "POST", TOPOLOGY, emptied))
    reason = "site wien has no switch to carry a network: add a switch, or name another site"
    assert status == 409
    assert detail == f"the path of cluster demo would break: {reason}; or end the cluster first"
