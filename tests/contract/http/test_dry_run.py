"""Tests that dry runs and differences predict changes, but make no changes."""

from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.linux_switch import LinuxLine, LinuxSwitch
from support.sbf_fakes.world import World, make_world, site, spec

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.linux_bridge import LinuxBridge
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.store.clusters.cluster_dry_run import dry_run_cluster
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.errors import Conflict
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortName
from virtcloud.model.vlans import VlanSet


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def test_a_dry_run_has_vlan_ids_and_changes(world: World) -> None:
    world.settle()
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1", "praha-h1"))
    assert answer.status_code == 200
    dry_run = answer.json()
    assert (dry_run["created"], dry_run["vlans"]) == (True, {"brno": 100, "praha": 100})
    assert [one["element"] for one in dry_run["elements"]] == ["brno-h1", "brno-sw1", "praha-h1", "praha-sw1"]
    host, switch = dry_run["elements"][:2]
    assert switch["switch"]["add"] == {"p1": "100", "uplink": "100"}
    assert switch["switch"]["create"] == "100"
    assert switch["read_at"] == "2026-01-01T00:00:00Z"
    assert [(one["key"], one["vlan"], one["port"]) for one in host["host"]["add"]] == [("demo", 100, "eth0")]
    assert [one["name"] for one in host["host"]["add"][0]["guests"]] == ["g1"]


def test_an_ended_attempts_dry_run_needs_no_removed_transport(world: World) -> None:
    request = body("brno-h1", "praha-h1") | {"attempt": 0}
    ask(world, "PUT", "/v1/clusters/demo", request)
    world.settle()
    world.delete("demo")
    world.settle()
    document = world.topology().model_dump(mode="json")
    for one in document["sites"]:
        one["attachments"] = []
    world.put_topology(Topology.model_validate(document | {"transports": []}))
    assert ask(world, "PUT", "/v1/clusters/demo", request).status_code == 200
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", request)
    assert (answer.status_code, answer.json().get("joined")) == (200, None)


def test_a_dry_run_claims_nothing_and_writes_nothing(world: World) -> None:
    rows, element = len(world.audit()), world.element("brno-sw1")
    ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1"))
    assert (len(world.audit()), world.element("brno-sw1")) == (rows, element)
    assert str(world.site("brno").claimed) == ""
    assert ask(world, "GET", "/v1/clusters/demo").status_code == 404


def test_a_dry_run_predicts_the_later_change(world: World) -> None:
    world.settle()
    world.put("other", spec("brno-h2"))
    world.settle()
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1", "praha-h1"))
    predicted = {
        difference["element"]: difference["switch"] for difference in answer.json()["elements"] if difference["switch"]
    }
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    applied = {name: world.switches[name].applied[-1].model_dump(mode="json") for name in predicted}
    assert predicted == applied


def test_a_dry_run_of_an_existing_cluster_shows_unapplied_changes(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.converge("brno-sw1")
    dry_run = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1", "praha-h1")).json()
    changes = {
        difference["element"]: bool(difference["switch"]["add"])
        for difference in dry_run["elements"]
        if difference["switch"]
    }
    assert (dry_run["created"], dry_run["vlans"]) == (False, {"brno": 100, "praha": 100})
    assert changes == {"brno-sw1": False, "praha-sw1": True}


def test_a_dry_run_is_refused_like_its_call(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    status, kind, _ = problem(ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h2")))
    assert (status, kind) == (409, "other-spec")
    world.put_pool("praha", "")
    status, kind, _ = problem(ask(world, "PUT", "/v1/clusters/new?dry_run=true", body("praha-h1")))
    assert (status, kind) == (409, "no-vlan-free")


def test_a_dry_run_of_an_attempt_ends_no_former_attempt(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=1)
    assert problem(ask(world, "PUT", "/v1/clusters/job?dry_run=true", body("brno-h1", attempt=2)))[0] == 409
    assert world.view("job").state == "configuring"


def test_a_difference_compares_with_the_last_reading(world: World) -> None:
    world.settle()
    assert ask(world, "GET", "/v1/elements/brno-sw1/difference").json()["switch"]["add"] == {}
    world.put("demo", spec("brno-h1"))
    assert ask(world, "GET", "/v1/elements/brno-sw1/difference").json()["switch"]["add"] == {"p1": "100"}


def test_a_hosts_difference_has_unconfirmed_changes(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.put("next", spec("brno-h1"))
    host = ask(world, "GET", "/v1/elements/brno-h1/difference").json()["host"]
    assert ([segment["key"] for segment in host["add"]], host["remove"]) == (["next"], ["demo"])


def test_reading_a_difference_does_not_change_the_switch(world: World) -> None:
    world.settle()
    switch = world.switches["brno-sw1"]
    switch.ports, switch.calls = {"p1": {139}}, []
    difference = ask(world, "GET", "/v1/elements/brno-sw1/difference?read=true").json()
    assert difference["switch"]["remove"] == {"p1": "139"}
    assert (switch.calls, switch.carried()) == (["read"], {"p1": "139"})


def test_a_difference_never_changes_a_foreign_vlan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.switches["brno-sw1"].table = {139: "staff"}
    wrong = SwitchDifference(delete=VlanSet([139]))
    monkeypatch.setattr("sbf_service.reconcile.task.compare_switch", lambda _wanted, _observed: wrong)
    status, kind, detail = problem(ask(world, "GET", "/v1/elements/brno-sw1/difference?read=true"))
    assert (status, kind) == (502, "unsafe")
    assert detail == "switch brno-sw1: VLAN 139 is in other use; left unchanged (VLANs of SBF: none)"


@pytest.mark.parametrize(
    ("fault", "answer"), [("cut_off", (504, "unreachable")), ("unsafe", (502, "unsafe"))], ids=["cut off", "unsafe"]
)
def test_an_unreadable_switch_is_a_problem(world: World, fault: str, answer: tuple[int, str]) -> None:
    setattr(world.switches["brno-sw1"], fault, True)
    status, kind, detail = problem(ask(world, "GET", "/v1/elements/brno-sw1/difference?read=true"))
    assert (status, kind) == answer
    assert detail.startswith("switch brno-sw1")


def test_a_host_is_not_read_by_sbf(world: World) -> None:
    assert problem(ask(world, "GET", "/v1/elements/brno-h1/difference?read=true"))[:2] == (409, "conflict")
    assert problem(ask(world, "POST", "/v1/elements/brno-h1/reconcile"))[:2] == (409, "conflict")


def test_a_busy_switch_is_not_read_concurrently(world: World) -> None:
    reader = OnDemandReader(world.service.store, world.service.scheduler)
    with (
        world.service.scheduler.exclude_workers(Name("brno-sw1")),
        pytest.raises(Conflict, match=r"brno-sw1 has been busy for 0\.01 s"),
        world.service.scheduler.exclude_workers(Name("brno-sw1"), patience=0.01),
    ):
        pass
    assert reader.difference(Name("brno-sw1")).switch == SwitchDifference()


def test_the_cost_of_a_dry_run_grows_with_its_sites(tmp_path: Path) -> None:
    """A dry run across twice as many sites takes about twice as many steps.

    The dry run would take four times as many steps if each element loaded all clusters again.
    """
    few, many = (database_steps_of_a_dry_run(tmp_path / str(sites), sites) for sites in (6, 12))
    assert few < many < 3 * few


def database_steps_of_a_dry_run(folder: Path, sites: int) -> int:
    """Return the SQLite steps of one dry run, in hundreds. The dry run and ten clusters span all sites."""
    folder.mkdir()
    names, steps = [f"s{number}" for number in range(sites)], []
    topology = {
        "name": "many",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [site(name, 1) for name in names],
        "links": [{"a": f"{name}-h1:eth0", "b": f"{name}-sw1:p1"} for name in names],
    }
    world, wanted = make_world(folder), spec(*(f"{name}-h1" for name in names))
    world.furnish(topology=Topology.model_validate(topology))
    for number in range(10):
        world.put(f"c{number}", wanted)
    with world.store.read() as unit:
        connection = unit.connection.connection.dbapi_connection
        connection.set_progress_handler(lambda: steps.append(1), 100)
        dry_run_cluster(unit, ClusterKey("demo"), ClusterRequest(spec=wanted), world.service.reserved)
        connection.set_progress_handler(None, 0)
    world.close()
    return len(steps)


def test_a_dry_run_lists_the_commands_of_a_linux_switch() -> None:
    driver = LinuxBridge(Name("sw1"), LinuxLine(LinuxSwitch({"p1": {}})))
    driver.read(SwitchScope((PortName("p1"),), VlanSet([100])))
    assert driver.list_commands(SwitchDifference(add={PortName("p1"): VlanSet([100])})) == (
        "bridge vlan add dev p1 vid 100",
    )
