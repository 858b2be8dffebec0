import json
from pathlib import Path

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import SWITCH, Answer, FakeSbf

from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import NewToken

NOT_FOUND = {
    "type": "https://virtcloud.dev/problems/not-found",
    "title": "not found",
    "status": 404,
    "detail": "unknown",
}


def test_a_token_that_cannot_be_written_is_named(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"id": "k3qh7x2a", "name": "eva", "role": "user", "token": "vc_k3qh7x2a_x", "created_by": "root"}
    new = NewToken.model_validate({**made, "created_at": "2026-07-01T12:00:00Z"})
    monkeypatch.setattr(SbfClient, "create_token", lambda *_: new)
    result = run("token", "create", "eva", "--role", "user", "--output", "/dev/null/eva.token")
    assert result.exit_code == 2
    assert result.stderr.endswith("; token k3qh7x2a is lost: virtcloud token revoke k3qh7x2a\n")


def test_no_token_is_created_for_an_existing_file(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SbfClient, "create_token", lambda *_: pytest.fail("a token was created"))
    (tmp_path / "eva.token").write_text("vc_older\n")
    result = run("token", "create", "eva", "--role", "user", "--output", str(tmp_path / "eva.token"))
    assert result.exit_code == 2
    assert "eva.token: expected a new file, but the file exists; " in result.stderr


def test_a_complete_token_is_not_repeated_in_the_error(run: RunCommand) -> None:
    result = run("token", "revoke", "vc_k3qh7x2a_secret")
    assert result.exit_code == 2
    assert "expected the ID of a token, got a complete token: its ID is " in result.stderr
    assert "secret" not in result.stderr


@pytest.fixture
def elements(sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The elements of an SBF that creates tokens. Initially: a switch and a host."""
    listed: list[dict[str, object]] = [SWITCH, SWITCH | {"name": "brno-h1", "kind": "host"}]

    def answer(method: str, path: str, body: bytes) -> Answer:
        if method == "POST":
            made = {"id": "k3qh7x2a", "token": "vc_k3qh7x2a_x", "created_by": "root", "created_at": "2026-07-01T12:00Z"}
            return 201, json.dumps(made | json.loads(body)).encode()
        named = [element for element in listed if path == f"/v1/elements/{element['name']}"]
        found = listed if path == "/v1/elements" else named[0] if named else NOT_FOUND
        return (404 if found is NOT_FOUND else 200), json.dumps(found).encode()

    monkeypatch.setattr(sbf, "answer", answer)
    return listed


@pytest.mark.parametrize("role", ["agent", "job-starter"])
@pytest.mark.usefixtures("elements")
def test_a_similar_element_is_named_for_an_unknown_holder(run: RunCommand, role: str) -> None:
    result = run("token", "create", "brno-h11", "--role", role)
    assert (result.exit_code, result.stdout) == (0, "vc_k3qh7x2a_x\n")
    assert result.stderr.splitlines()[1] == (
        "virtcloud: the topology has no host or gateway brno-h11 (similar: brno-h1): until the topology contains this "
        "element, this token gives access to no element"
    )


@pytest.mark.parametrize(("name", "named"), [("brno-sw", "similar: brno-h1"), ("prometheus", "known: brno-h1")])
@pytest.mark.usefixtures("elements")
def test_hosts_are_named_for_a_holder_without_an_agent(run: RunCommand, name: str, named: str) -> None:
    result = run("token", "create", name, "--role", "agent")
    assert (result.exit_code, result.stdout) == (0, "vc_k3qh7x2a_x\n")
    assert f"no host or gateway {name} ({named}): " in result.stderr


@pytest.mark.parametrize(("name", "role"), [("brno-h1", "agent"), ("brno-h11", "user")])
@pytest.mark.usefixtures("elements")
def test_a_known_holder_causes_no_warning(run: RunCommand, name: str, role: str) -> None:
    result = run("token", "create", name, "--role", role)
    assert (result.exit_code, "virtcloud:" in result.stderr) == (0, False)


def test_a_token_before_the_first_topology_causes_no_warning(
    run: RunCommand, elements: list[dict[str, object]]
) -> None:
    elements.clear()
    result = run("token", "create", "brno-h1", "--role", "agent")
    assert (result.exit_code, "virtcloud:" in result.stderr) == (0, False)


def test_unreadable_elements_do_not_hide_a_new_token(
    run: RunCommand, sbf: FakeSbf, elements: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = sbf.answer
    answers = {"POST": create}
    monkeypatch.setattr(
        sbf, "answer", lambda method, *rest: answers.get(method, lambda *_: (500, b"{}"))(method, *rest)
    )
    result = run("token", "create", "brno-h1", "--role", "agent")
    assert (result.exit_code, result.stdout, bool(elements)) == (0, "vc_k3qh7x2a_x\n", True)
    assert "the elements could not be read, so element brno-h1 may be unknown: " in result.stderr
