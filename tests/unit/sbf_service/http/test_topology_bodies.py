"""Tests of the parser that reads a topology in pieces. The parser's results and errors are those of Pydantic."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from support.sbf_fakes.world import three_sites

from sbf_service.http.topology_bodies import (
    SENT_PIECE,
    LargeAnswer,
    TopologyOperation,
    answer_topology,
    parse_topology,
)
from sbf_service.large_documents import Pauses
from virtcloud.model.document import share_given_keys
from virtcloud.model.element import Host
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


@pytest.mark.parametrize("indent", [None, 2])
def test_a_topology_read_in_pieces_is_complete(indent: int | None) -> None:
    document = three_sites().model_dump(mode="json")
    assert parse_topology(json.dumps(document, indent=indent).encode()) == three_sites()


def test_hosts_with_equal_keys_share_the_set_of_keys() -> None:
    parsed = parse_topology(three_sites().model_dump_json().encode())
    assert isinstance(parsed, Topology)
    assert len({id(host.model_fields_set) for host in parsed.hosts.values()}) == 1 < len(parsed.hosts)


def test_hosts_with_other_keys_keep_their_own_set_of_keys() -> None:
    hosts = [Host(name=Name("n1"), ports=(Name("eth0"),)), Host(name=Name("n2"), ports=(Name("eth0"),), images=())]
    share_given_keys(hosts)
    assert [host.model_fields_set for host in hosts] == [{"name", "ports"}, {"name", "ports", "images"}]


def test_equal_links_are_reused_from_the_former_topology() -> None:
    former, document = three_sites(), three_sites().model_dump(mode="json")
    document["links"][1]["latency_ms"] = 5
    del document["links"][2]["access"]
    parsed = parse_topology(json.dumps(document).encode(), former)
    assert parsed == Topology.model_validate(document)
    assert isinstance(parsed, Topology)
    kept = [link is former.links[index] for index, link in enumerate(parsed.links)]
    assert kept == [index != 1 for index in range(len(former.links))]


def test_equal_links_need_no_keys_with_default_values() -> None:
    """The Python API and the commands omit keys that have their default value."""
    former = three_sites()
    parsed = parse_topology(former.model_dump_json(exclude_defaults=True).encode(), former)
    assert isinstance(parsed, Topology)
    assert all(link is known for link, known in zip(parsed.links, former.links, strict=True))


@pytest.mark.parametrize("end", [None, 7, ["a"], {}])
def test_a_link_without_a_port_is_refused(end: object) -> None:
    document = three_sites().model_dump(mode="json")
    document["links"][0]["a"] = end
    with pytest.raises(RequestValidationError):
        parse_topology(json.dumps(document).encode(), three_sites())


def test_an_answer_in_pieces_contains_the_whole_topology() -> None:
    answer = answer_topology(three_sites(), Response(headers={"etag": '"7"'}))
    assert json.loads(bytes(answer.body)) == three_sites().model_dump(mode="json")
    assert answer.headers["etag"] == '"7"'


def test_bodies_and_answers_can_pause_at_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(Pauses, "pause", lambda _self: pauses.append(1))
    topology = three_sites()
    body, items = topology.model_dump_json().encode(), len(topology.sites) + len(topology.links)

    def count(call: Callable[[], object]) -> int:
        before = len(pauses)
        call()
        return len(pauses) - before

    assert count(lambda: parse_topology(body)) == items
    assert count(lambda: answer_topology(topology, Response())) == items


def test_an_answer_without_links_is_a_topology() -> None:
    alone = Topology.model_validate({"name": "one", "sites": [{"name": "brno"}]})
    assert Topology.model_validate_json(bytes(answer_topology(alone, Response()).body)) == alone


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["sites"][1]["hosts"][0].update(ports=[]),
        lambda document: document["links"][2].update(a="nowhere"),
        lambda document: document["links"].pop(0),
        lambda document: document.update(sites={}),
        lambda document: document.update(unknown=1),
        lambda document: document.pop("name"),
    ],
    ids=["site", "link", "whole", "no list", "unknown key", "missing key"],
)
def test_faults_have_the_same_places_as_in_pydantic(change: Callable[[dict[str, Any]], object]) -> None:
    document = three_sites().model_dump(mode="json")
    change(document)
    with pytest.raises(ValidationError) as usual:
        Topology.model_validate(document)
    with pytest.raises(RequestValidationError) as found:
        parse_topology(json.dumps(document).encode())
    assert [fault["loc"][1:] for fault in found.value.errors()] == [fault["loc"] for fault in usual.value.errors()]


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"[" * 100_000, b'{"name": "a", "links": ' + b"[" * 100_000, b'{"name": ' + b"1" * 5000 + b"}"],
    ids=["bytes", "deep", "deep end", "long number"],
)
def test_the_thread_refuses_bodies_that_json_cannot_parse(body: bytes) -> None:
    """FastAPI would parse the whole body on the event loop before it finds a fault at the end."""
    with pytest.raises(HTTPException) as found:
        parse_topology(body)
    assert found.value.status_code == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    "body",
    [
        b" ",
        b'{"name": "a"',
        b'{"sites": [1 2]}',
        b'{"name": "a"} x',
        b'{"sites": [{"name":',
        b'{"name": "a", }',
        b"{1: 2}",
    ],
    ids=["empty", "no end", "no comma", "more text", "cut", "last comma", "number"],
)
def test_faults_of_other_text_are_those_of_fastapi(body: bytes) -> None:
    """FastAPI would parse the whole body on the event loop, while no other call is answered."""
    app, usual = FastAPI(), list[Any]()

    @app.put("/topology")
    def put(topology: dict[str, Any]) -> None:
        raise NotImplementedError(topology)

    @app.exception_handler(RequestValidationError)
    async def record(_request: Request, error: RequestValidationError) -> Response:
        usual.extend(error.errors())
        return Response()

    async def call() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            await client.put("/topology", content=body, headers={"content-type": "application/json"})

    asyncio.run(call())
    with pytest.raises(RequestValidationError) as found:
        parse_topology(body)
    assert [_text_of(fault) for fault in found.value.errors()] == [_text_of(fault) for fault in usual]


def _text_of(fault: dict[str, Any]) -> tuple[object, ...]:
    return fault["type"], fault["msg"], fault["ctx"]


def test_a_fault_is_found_without_parsing_the_body_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's JSON parser holds the interpreter while it parses a whole topology."""
    document = three_sites().model_dump(mode="json")
    document["sites"][1]["hosts"][0]["ports"] = []
    monkeypatch.setattr("sbf_service.http.large_bodies.json.loads", None)
    with pytest.raises(RequestValidationError, match="at least 1 item"):
        parse_topology(json.dumps(document).encode())
    with pytest.raises(RequestValidationError, match="JSON decode error"):
        parse_topology(three_sites().model_dump_json().encode()[:-20])


def test_a_key_misspelled_at_every_host_is_named() -> None:
    """The fault of one template appears once for each host."""
    hosts = [{"name": f"h{number}", "ports": ["eth0"], "admit": {}} for number in range(1100)]
    with pytest.raises(RequestValidationError) as found:
        parse_topology(json.dumps({"name": "core", "sites": [{"name": "brno", "hosts": hosts}]}).encode())
    assert found.value.errors()[0]["loc"] == ("body", "sites", 0, "hosts", 0, "admit")


def test_a_caller_who_disconnects_causes_no_error() -> None:
    app, answers = FastAPI(), list[Any]()
    app.router.route_class = TopologyOperation

    @app.put("/topology", operation_id="put", tags=["topology"])
    def put(topology: Topology) -> str:
        return topology.name

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "PUT", "path": "/topology", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert answers[0]["status"] == 400


def test_an_answer_is_sent_in_pieces() -> None:
    text, messages = b"0123456789" * 20_000, list[Any]()

    async def send(message: object) -> None:
        messages.append(message)

    asyncio.run(LargeAnswer(text)({"type": "http"}, forbid_receive, send))
    start, *pieces, end = messages
    assert dict(start["headers"])[b"content-length"] == b"200000"
    assert b"".join(piece["body"] for piece in pieces) == text
    assert [len(piece["body"]) <= SENT_PIECE and piece["more_body"] for piece in pieces] == [True] * 4
    assert not end.get("more_body")


async def forbid_receive() -> dict[str, str]:
    raise NotImplementedError
