import json
from typing import Any

import pytest
from support.cli_calls import RunCommand

from virtcloud.client.sbf import SbfClient
from virtcloud.model.vpn import VpnInvitation

BOB = VpnInvitation.model_validate(
    {"cluster": "demo", "user": "bob", "invited_at": "2026-11-23T07:00:00Z", "invited_by": "alice"}
)


@pytest.fixture(autouse=True)
def withdrawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the users whose invitations were withdrawn. Only bob is invited."""
    users: list[Any] = []
    monkeypatch.setattr(SbfClient, "invitations", lambda *_: [BOB])
    monkeypatch.setattr(SbfClient, "withdraw_invitation", lambda _self, _key, user: users.append(user) or [])
    return users


def test_uninvite_notes_that_a_user_was_not_invited(run: RunCommand, withdrawn: list[Any]) -> None:
    result = run("access", "uninvite", "demo", "bbo")
    assert (result.exit_code, withdrawn) == (0, ["bbo"])
    assert result.stdout == "bbo is not invited to cluster demo; devices with revoked profiles: none\n"
    assert result.stderr == (
        "virtcloud: bbo was not invited to cluster demo; list the invited users: virtcloud access invitations demo\n"
    )


def test_the_note_about_a_missing_invitation_leaves_json_unchanged(run: RunCommand) -> None:
    result = run("access", "uninvite", "demo", "bbo", "--json")
    assert json.loads(result.stdout) == []
    assert "bbo was not invited" in result.stderr


def test_uninvite_of_an_invited_user_has_no_note(run: RunCommand, withdrawn: list[Any]) -> None:
    result = run("access", "uninvite", "demo", "bob")
    assert (result.exit_code, result.stderr, withdrawn) == (0, "", ["bob"])
