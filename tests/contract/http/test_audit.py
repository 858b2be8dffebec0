"""Tests of the audit log (docs/explanation/invariants.md, 8)."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from support.sbf_fakes.http_calls import ask, client
from support.sbf_fakes.world import World, spec

from sbf_service.credential_settings import Credential, SecretSource
from sbf_service.store.elements.confirmations import reset_confirmation
from sbf_service.store.unit_of_work import record_audit
from virtcloud.model.access import Role
from virtcloud.model.changes import HostDifference
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

SECRET = "hunter2"  # noqa: S105 - the tests search for this text


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def rows(world: World, query: str = "") -> list[dict[str, Any]]:
    answer = ask(world, "GET", f"/v1/audit{query}")
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()
    return entries


def test_the_rows_of_a_cluster_are_found_by_its_key(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.put("other", spec("praha-h1"))
    assert [(row["what"], row["who"], row["cluster"]) for row in rows(world, "?cluster=demo")] == [
        ("cluster_created", "alice", "demo")
    ]


def test_rows_of_an_element_have_the_applied_difference(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))
    world.settle()
    changes = [row for row in rows(world, "?element=brno-sw1") if row["what"] == "switch_change"]
    assert [(row["who"], row["why"], row["difference"]["add"]) for row in changes] == [
        ("sbf@one", "revision 3 for demo", {"p1": "100"})
    ]


def test_the_newest_rows_are_returned_oldest_first(world: World) -> None:
    ids = [row["id"] for row in rows(world)]
    assert ids == sorted(ids)
    assert [row["id"] for row in rows(world, "?limit=2")] == ids[-2:]
    assert [row["id"] for row in rows(world, f"?after={ids[0]}&limit=2")] == ids[1:3]


def test_a_row_id_can_have_64_bits(world: World) -> None:
    assert rows(world, f"?after={2**31}") == rows(world, f"?after={2**63 - 1}") == []


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?after=-1", "?element=Brno", f"?after={2**63}"])
def test_a_malformed_query_is_bad_input(world: World, query: str) -> None:
    assert ask(world, "GET", f"/v1/audit{query}").status_code == 422


def test_a_long_poll_gets_a_new_row_immediately(world: World) -> None:
    after = rows(world)[-1]["id"]

    async def wait() -> tuple[float, list[str]]:
        async with client(world.service) as http:
            poll = asyncio.create_task(http.get(f"/v1/audit?after={after}&wait=20"))
            await asyncio.sleep(0.1)
            start = time.monotonic()
            await asyncio.to_thread(world.put, "demo", spec("brno-h1"))
            events = [row["what"] for row in (await poll).json()]
            return time.monotonic() - start, events

    seconds, events = asyncio.run(wait())
    assert events == ["cluster_created"]
    assert seconds < 10


def test_every_change_has_a_row_with_its_caller(world: World) -> None:
    alice, agent = world.token(Role.USER, "alice"), world.token(Role.AGENT, "praha-h1")
    last_id = rows(world)[-1]["id"]
    topology = world.topology().model_dump(mode="json")
    topology["sites"][0]["hosts"].pop()
    topology["links"] = [row for row in topology["links"] if not row["a"].startswith("brno-h2")]
    ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"})
    ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "100-139,200"})
    ask(world, "PUT", "/v1/clusters/demo", {"spec": spec("brno-h1").model_dump(mode="json")}, token=alice)
    ask(world, "DELETE", "/v1/clusters/demo", token=alice)
    ask(world, "POST", "/v1/elements/praha-h1/trouble", {"revision": 1, "message": "eth0 is down"}, token=agent)
    recorded = [(row["what"], row["who"], row["why"], row["element"]) for row in rows(world, f"?after={last_id}")]
    assert recorded == [
        ("topology_put", "root", "version 2", None),
        ("pool_put", "root", "brno: 100-139 became 100-139,200", None),
        ("cluster_created", "alice", "requested by alice: VLAN 100", None),
        ("cluster_draining", "alice", "ended by alice", None),
        ("element_trouble", "agent@praha-h1", "eth0 is down", "praha-h1"),
    ]


def test_no_secret_reaches_audit_rows_or_the_log(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver fails with an error that contains a device's login data."""
    (tmp_path / "password").write_text(SECRET)
    account = Credential(username="sbf", password=SecretSource(file=tmp_path / "password"))
    monkeypatch.setitem(world.service.settings.credentials, Name("site"), account)
    described = world.topology().model_dump(mode="json")
    described["sites"][0]["switches"][0]["credential"] = "site"
    world.put_topology(Topology.model_validate(described))

    def fail(login: object) -> None:
        raise RuntimeError(f"cannot log in: {login}")

    monkeypatch.setattr(world.switches, "_driver", fail)
    world.converge("brno-sw1")
    trouble = world.audit("element_trouble")[-1].why or ""
    assert "password=SecretStr('**********')" in trouble
    assert SECRET not in trouble + caplog.text + ask(world, "GET", "/v1/audit").text
    assert SECRET not in Path(world.database.removeprefix("sqlite:///")).read_bytes().decode("latin-1")


def test_a_row_is_rolled_back_with_its_change(world: World) -> None:
    before = len(world.audit())

    def crash() -> None:
        with world.service.store.change() as unit:
            record_audit(unit, "something")
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    assert len(world.audit()) == before


def test_a_hosts_rows_show_added_and_removed_clusters(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.settle()
    changes = [row for row in rows(world, "?element=brno-h1") if row["difference"] is not None]
    assert [(row["what"], row["who"], added_and_removed(row)) for row in changes] == [
        ("element_confirmed", "brno-h1", ([("demo", 100, "eth0", ["g1"])], [])),
        ("element_confirmed", "brno-h1", ([], ["demo"])),
    ]


def test_a_row_records_a_host_corrected_after_drift(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        reset_confirmation(unit, "brno-h1", "the agent found a difference", timedelta(seconds=60))
    world.settle()
    changes = [row for row in rows(world, "?element=brno-h1") if row["difference"] is not None]
    assert [added_and_removed(row) for row in changes] == [([("demo", 100, "eth0", ["g1"])], [])] * 2


def test_drift_does_not_repeat_earlier_removals_in_the_log(world: World) -> None:
    for key in ("first", "second"):
        world.put(key, spec("brno-h1"))
        world.settle()
        world.delete(key)
        world.settle()
    world.put("stays", spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        reset_confirmation(unit, "brno-h1", "the agent found a difference", timedelta(seconds=60))
    world.settle()
    changes = [row for row in rows(world, "?element=brno-h1") if row["difference"] is not None]
    assert added_and_removed(changes[-1]) == ([("stays", 102, "eth0", ["g1"])], [])


def test_a_removal_confirmed_after_drift_is_in_the_log(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        reset_confirmation(unit, "brno-h1", "the agent found a difference", timedelta(seconds=60))
    world.delete("demo")
    world.settle()
    changes = [row for row in rows(world, "?element=brno-h1") if row["difference"] is not None]
    assert added_and_removed(changes[-1]) == ([], ["demo"])


def test_earlier_removals_of_a_host_are_not_read(world: World) -> None:
    """An index finds the removals after a revision, so the cost does not grow with the host's history."""
    with world.store.read() as unit:
        plan = unit.connection.execute(
            text("EXPLAIN QUERY PLAN SELECT cluster_id FROM placements WHERE element = 'h' AND removed_revision > 7")
        ).all()
    assert "ix_placements_element_removed_revision" in str(plan)


def added_and_removed(row: dict[str, object]) -> tuple[list[tuple[object, ...]], list[str]]:
    """Return the clusters that a host added (key, VLAN ID, port, guests) and removed."""
    difference = HostDifference.model_validate(row["difference"])
    added: list[tuple[object, ...]] = [
        (segment.key, segment.vlan, segment.port, [guest.name for guest in segment.guests])
        for segment in difference.add
    ]
    return added, list(difference.remove)
