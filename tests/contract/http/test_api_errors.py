import httpx
import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError
from support.sbf_fakes.http_calls import app_of, ask, problem, run_with_client
from support.sbf_fakes.world import World

from sbf_service.domain.idempotency import NOT_SAFE_TO_REPEAT, SAFE_TO_REPEAT
from sbf_service.http.problems import NOT_IDEMPOTENT
from sbf_service.store.users import tokens
from virtcloud.model.errors import DatabaseUnavailable


def test_all_faults_of_a_request_are_named(world: World) -> None:
    request = {"spec": {"owner": "-alice", "guests": [{"name": "g", "host": "brno-h1"}], "lease": 3}}
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", request))
    assert (status, kind) == (422, "bad-input")
    lines = detail.splitlines()
    assert lines[0].startswith("spec.owner: expected a user name: letters, digits")
    assert lines[1:] == [
        "spec.guests.0.image: expected a value, got none",
        "spec.lease: unknown key; check its spelling",
    ]


def test_a_malformed_key_is_bad_input(world: World) -> None:
    status, kind, detail = problem(ask(world, "GET", "/v1/clusters/Demo"))
    assert (status, kind) == (422, "bad-input")
    assert "expected a cluster key" in detail


def test_a_body_that_is_not_json_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content='{"spec": ', headers=header))

    run_with_client(world, send)
    status, kind, detail = problem(answers[0])
    assert (status, kind) == (422, "bad-input")
    assert detail.startswith("body: not JSON: ")


def test_a_binary_body_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content=b"\xff\xfe{", headers=header))

    run_with_client(world, send)
    assert problem(answers[0]) == (422, "bad-input", "body: not JSON: expected UTF-8, got something else")


def test_a_deeply_nested_body_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content="[" * 100_000, headers=header))

    run_with_client(world, send)
    expected = "body: expected a document with fewer nested levels, got too many levels"
    assert problem(answers[0]) == (422, "bad-input", expected)


def test_unknown_routes_and_methods_are_problems(world: World) -> None:
    assert problem(ask(world, "GET", "/v2/clusters")) == (
        404,
        "no-such-route",
        "GET /v2/clusters: not found; see /docs",
    )
    answer = ask(world, "PATCH", "/v1/topology")
    assert problem(answer) == (405, "no-such-method", "PATCH /v1/topology: method not allowed; see /docs")
    assert set(answer.headers["allow"].split(", ")) <= {"GET", "PUT"}


def test_an_unreachable_database_is_status_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_session: object) -> None:
        raise OperationalError("SELECT secret", {"password": "hunter2"}, Exception("disk I/O error"))

    monkeypatch.setattr(type(world.clock), "__call__", lambda _clock, session: away(session))
    answer = ask(world, "GET", "/v1/elements/brno-h1/wanted")
    assert problem(answer)[:2] == (503, "database-unavailable")
    assert "hunter2" not in answer.text


def test_a_faulty_statement_is_an_internal_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise ProgrammingError("SELECT secret", {"password": "hunter2"}, Exception("no such column"))

    monkeypatch.setattr(type(world.clock), "__call__", fail)
    answer = ask(world, "GET", "/v1/elements/brno-h1/wanted", headers={"X-Request-ID": "one"})
    assert problem(answer) == (
        500,
        "error",
        "internal error in SBF: see SBF's log, request ID one; it is safe to repeat the call",
    )


def test_no_repetition_is_advised_for_a_call_that_creates_a_token(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "create_token", lambda *_: 1 // 0)
    answer = ask(world, "POST", "/v1/tokens", {"name": "eva", "role": "user"}, headers={"X-Request-ID": "one"})
    assert problem(answer)[2] == (
        "internal error in SBF: see SBF's log, request ID one; before you repeat the call, look whether the call had "
        "an effect (virtcloud token list, virtcloud access list), because a repeated call creates a second token, "
        "profile, certificate or authority"
    )


@pytest.mark.parametrize("error", [DatabaseUnavailable(SAFE_TO_REPEAT), OperationalError("", {}, Exception("away"))])
def test_no_repetition_of_a_creation_is_advised_without_a_database(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(tokens, "create_token", fail)
    detail = problem(ask(world, "POST", "/v1/tokens", {"name": "eva", "role": "user"}))[2]
    assert (SAFE_TO_REPEAT in detail, NOT_SAFE_TO_REPEAT in detail) == (False, True)


def test_every_call_that_is_not_idempotent_is_an_operation_of_the_api(world: World) -> None:
    calls = [call for path in app_of(world.service).openapi()["paths"].values() for call in path.values()]
    assert {call["operationId"] for call in calls} >= NOT_IDEMPOTENT


def test_a_fault_in_the_service_reveals_no_internals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.clock), "__call__", lambda _clock, _session: 1 // 0)
    assert problem(ask(world, "GET", "/v1/elements/brno-h1/wanted", headers={"X-Request-ID": "one"})) == (
        500,
        "error",
        "internal error in SBF: see SBF's log, request ID one; it is safe to repeat the call",
    )
