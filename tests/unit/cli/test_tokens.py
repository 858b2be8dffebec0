"""Tests of ``virtcloud token``."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_calls import RunCommand

from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import NewToken
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import NotFound


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
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, ElementKind]:
    """An SBF that creates each token. The result has the kinds of the topology's elements, by name."""
    known = {"brno-h1": ElementKind.HOST, "brno-sw1": ElementKind.SWITCH}

    def element(_: SbfClient, name: str) -> SimpleNamespace:
        if name not in known:
            raise NotFound(f"element {name} is not known")
        return SimpleNamespace(kind=known[name])

    def create_token(_: SbfClient, name: str, role: str, *__: object) -> NewToken:
        made = {"id": "k3qh7x2a", "name": name, "role": role, "token": "vc_k3qh7x2a_x", "created_by": "root"}
        return NewToken.model_validate({**made, "created_at": "2026-07-01T12:00:00Z"})

    monkeypatch.setattr(SbfClient, "element", element)
    monkeypatch.setattr(SbfClient, "create_token", create_token)
    monkeypatch.setattr(SbfClient, "site_pages", lambda *_, **__: iter([[object()]] if known else [[]]))
    return known


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    ("name", "found"),
    [("brno-h9", "has no element brno-h9"), ("brno-sw1", "describes brno-sw1 as a switch, which has no agent")],
)
def test_a_token_for_no_host_is_created_with_a_warning(run: RunCommand, name: str, found: str) -> None:
    result = run("token", "create", name, "--role", "agent")
    assert (result.exit_code, result.stdout) == (0, "vc_k3qh7x2a_x\n")
    assert result.stderr.endswith(
        f"virtcloud: SBF's topology {found}: SBF refuses the calls of the agent until the topology has a host or "
        f"gateway {name}; add it (virtcloud topology set), or, if the name is wrong, revoke the token (virtcloud token "
        "revoke k3qh7x2a)\n"
    )


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(("name", "role"), [("brno-h1", "agent"), ("brno-h1", "job-starter"), ("eva", "user")])
def test_a_token_for_a_known_holder_is_created_without_a_warning(run: RunCommand, name: str, role: str) -> None:
    assert "topology" not in run("token", "create", name, "--role", role).stderr


def test_a_token_before_the_first_topology_is_created_without_a_warning(
    run: RunCommand, kinds: dict[str, ElementKind]
) -> None:
    kinds.clear()
    assert "topology" not in run("token", "create", "brno-h9", "--role", "agent").stderr
