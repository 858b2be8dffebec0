"""Tests of the format of tokens, and of the principals of local users."""

import pytest

from sbf_service.domain.authentication import LocalUsers, Principal, Token, identify_local_user
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.errors import Unauthenticated

TEXT = "vc_aaaqeaye_BQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQ"


def make_token() -> Token:
    return Token.make(bytes(range(37)))


def test_a_token_consists_of_prefix_id_and_256_bits() -> None:
    assert make_token().text == TEXT
    assert (make_token().id, len(TEXT)) == ("aaaqeaye", 55)


def test_a_formatted_token_parses_to_itself() -> None:
    assert Token.parse(TEXT) == make_token()


@pytest.mark.parametrize(
    "text", ["", "vc_", TEXT[:-1], TEXT + "x", TEXT.upper(), TEXT.replace("vc_", "gh_"), f" {TEXT}"]
)
def test_an_invalid_token_parses_to_none(text: str) -> None:
    assert Token.parse(text) is None


def test_the_repr_of_a_token_hides_the_secret() -> None:
    assert "BQYH" not in f"{make_token()} {make_token()!r}"


def test_another_secret_under_the_same_id_has_another_digest() -> None:
    other = Token.parse(TEXT[:-1] + "A")
    assert other is not None
    assert (other.id == make_token().id, other.digest == make_token().digest) == (True, False)


@pytest.mark.parametrize(("uid", "name"), [(0, "root"), (120, "virtcloud")])
def test_root_and_the_service_user_are_operators(uid: int, name: str) -> None:
    assert identify_local_user(uid, name, 120, LocalUsers.TOKEN) == Principal(name, Role.OPERATOR)


def test_a_local_user_has_the_name_of_the_operating_system() -> None:
    assert identify_local_user(1000, "alice", 120, LocalUsers.USER) == Principal("alice", Role.USER)


@pytest.mark.parametrize(
    ("uid", "name", "setting", "message"),
    [
        (
            1000,
            "alice",
            LocalUsers.TOKEN,
            "the local user alice must present a token, because SBF's setting local_users is 'token'",
        ),
        (1000, "Alice B", LocalUsers.USER, "the local user Alice B has no valid user name for SBF"),
        (65534, None, LocalUsers.USER, "the local user with the user ID 65534 has no valid user name for SBF"),
    ],
)
def test_a_local_user_without_a_valid_name_needs_a_token(
    uid: int, name: str | None, setting: LocalUsers, message: str
) -> None:
    with pytest.raises(Unauthenticated) as raised:
        identify_local_user(uid, name, 120, setting)
    assert str(raised.value).startswith(message)
    assert "virtcloud login" in str(raised.value)


@pytest.mark.parametrize(
    ("role", "sites", "message"),
    [
        ("user", ["brno"], "expected no sites for the role user, got brno"),
        ("site-administrator", [], "expected at least one site for the role site-administrator, got none"),
    ],
)
def test_only_site_administrators_have_sites(role: str, sites: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenRequest.model_validate({"name": "ivo", "role": role, "sites": sites})
