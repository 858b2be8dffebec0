import asyncio
import logging
from typing import Any

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, body, client, problem
from support.sbf_fakes.world import World

from virtcloud.client.http_errors import error_of_response

HEADER = "X-Request-ID"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def put(world: World, key: str, request_id: str, *hosts: str, **headers: str) -> httpx.Response:
    return ask(world, "PUT", f"/v1/clusters/{key}", body(*hosts), headers={HEADER: request_id, **headers})


def found(world: World, request_id: str) -> list[str]:
    rows: list[dict[str, Any]] = ask(world, "GET", f"/v1/audit?request_id={request_id}").json()
    return [row["what"] for row in rows]


def test_the_answer_repeats_the_request_id_of_the_client(world: World) -> None:
    assert put(world, "demo", "job-7.pbs-1", "brno-h1").headers[HEADER] == "job-7.pbs-1"


@pytest.mark.parametrize("given", ["", "a" * 65, "a b", "a\x1b[31m", "ä", ",".join("abcdefghi")])
def test_an_invalid_request_id_is_replaced(world: World, given: str) -> None:
    answer = ask(world, "GET", "/v1/clusters", headers={HEADER: given.encode()})  # type: ignore[dict-item]
    assert answer.headers[HEADER] != given
    assert len(answer.headers[HEADER]) == 32


def test_audit_rows_from_creation_to_activity_have_the_request_id(world: World) -> None:
    put(world, "demo", "job-7.pbs-1", "brno-h1")
    put(world, "other", "job-8.pbs-1", "praha-h1")
    world.settle()
    assert found(world, "job-7.pbs-1") == ["cluster_created", "switch_change", "element_confirmed", "cluster_active"]


def test_a_change_for_several_calls_names_all_request_ids(world: World) -> None:
    put(world, "demo", "job-7.pbs-1", "brno-h1")
    put(world, "other", "job-8.pbs-1", "brno-h2")
    world.converge("brno-sw1")
    (row,) = world.audit("switch_change")
    assert sorted(str(row.request_id).split(",")) == ["job-7.pbs-1", "job-8.pbs-1"]
    assert "switch_change" in found(world, "job-7.pbs-1")
    assert "switch_change" not in found(world, "job-7.pbs")


def test_changes_in_one_transaction_keep_their_own_request_ids(world: World) -> None:
    async def create(number: int) -> None:
        async with client(world.service) as http:
            headers = {HEADER: f"id-{number}"}
            answer = await http.put(f"/v1/clusters/c{number}", json=body("brno-h1"), headers=headers)
            assert answer.status_code == 201, answer.text

    async def create_all() -> None:
        await asyncio.gather(*(create(number) for number in range(8)))

    asyncio.run(create_all())
    for number in range(8):
        (row,) = ask(world, "GET", f"/v1/audit?request_id=id-{number}").json()
        assert (row["what"], row["cluster"]) == ("cluster_created", f"c{number}")


def test_log_lines_of_call_and_worker_have_the_id(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbf_service")
    put(world, "demo", "job-7.pbs-1", "brno-h1")
    world.converge("brno-sw1")
    lines = [line for line in caplog.messages if line.endswith("request=job-7.pbs-1")]
    assert [line.split()[0] for line in lines] == ["call", "switch_change"]
    assert "method=PUT path=/v1/clusters/demo status=201 " in lines[0]


def test_log_lines_of_the_next_reconciliation_lack_the_request_id(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    put(world, "demo", "job-7.pbs-1", "brno-h1")
    world.converge("brno-sw1")
    world.switches["brno-sw1"].cut_off = True
    world.converge("brno-sw1")
    assert [line for line in caplog.messages if "switch_trouble" in line and "request=" in line] == []


def test_a_clusters_end_has_the_id_of_its_call(world: World) -> None:
    put(world, "demo", "first", "brno-h1")
    world.settle()
    ask(world, "DELETE", "/v1/clusters/demo", headers={HEADER: "second"})
    world.converge("brno-sw1")
    assert found(world, "second")[:2] == ["cluster_draining", "switch_change"]


def test_a_wanted_document_names_the_calls_of_its_changes(world: World) -> None:
    put(world, "demo", "job-7.pbs-1", "brno-h1", traceparent=TRACE)
    document = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()
    assert document["calls"] == [{"request_id": "job-7.pbs-1", "traceparent": TRACE}]
    world.settle()
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted").json()["calls"] == []


def test_an_internal_error_names_the_request_id(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.clock), "__call__", lambda _clock, _session: 1 // 0)
    answer = ask(world, "GET", "/v1/elements/brno-h1/wanted", headers={HEADER: "job-7.pbs-1"})
    assert problem(answer)[2].startswith("internal error in SBF: see SBF's log, request ID job-7.pbs-1; ")


@pytest.mark.parametrize(("status", "shown"), [(404, False), (503, True)])
def test_messages_of_failures_in_sbf_show_the_request_id(status: int, shown: bool) -> None:
    request = httpx.Request("GET", "http://sbf/v1/clusters/demo")
    content = {"type": "urn:virtcloud:problem:not-found", "detail": "demo"}
    answer = httpx.Response(status, headers={HEADER: "job-7"}, json=content, request=request)
    assert ("(request ID job-7)" in str(error_of_response("http://sbf", answer))) == shown
