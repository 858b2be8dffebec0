"""Tests of logging in with a real OpenID Connect provider on the loopback interface."""

import json
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from authlib.deprecate import AuthlibDeprecationWarning
from support.sbf_fakes.console_browser import ConsoleBrowser, text_of
from support.sbf_fakes.world import World, spec

from sbf_service.console.oidc import OidcClient, PendingLogin, log_provider_faults
from sbf_service.console.pages import oidc_login
from sbf_service.domain.oidc_identity import OidcRoles, make_principal
from sbf_service.overload import BoundedThreads
from sbf_service.settings import OidcKeys
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, Forbidden

with warnings.catch_warnings():
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    import oidc_provider_mock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the provider uses deprecated names of authlib

ROLES = {
    "user_claim": "uid",
    "operators": ["cloud-admins"],
    "site_administrators": {"netops": ["brno"]},
    "users": "all",
}
USERS = {
    "1": {"uid": "alice"},
    "2": {"uid": "eva", "groups": ["cloud-admins", "staff"]},
    "3": {"uid": "ivo", "groups": ["netops"]},
    "4": {"name": "nobody"},
}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    users = [oidc_provider_mock.User(sub=sub, claims=claims) for sub, claims in USERS.items()]
    with oidc_provider_mock.run_server_in_thread(user_claims=users, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def connected(world: World, issuer: str, tmp_path: Path) -> Iterator[World]:
    (secret := tmp_path / "oidc.secret").write_text("s3cret&more\n")
    keys = {
        "client_secret": {"file": str(secret)},
        "issuer": issuer,
        "client_id": "sbf",
        "name": "Example University",
        "roles": ROLES,
    }
    world.service.settings.console.__dict__["oidc"] = OidcKeys.model_validate(keys)
    yield world
    world.service.settings.console.__dict__["oidc"] = None


def begin(browser: ConsoleBrowser, **query: str) -> str:
    path = str(httpx.URL("/console/login/oidc", params=query))
    return browser.get(path).headers["location"]


def authorize(address: str, sub: str) -> str:
    answer = httpx.post(address, data={"sub": sub})
    assert answer.status_code == 302, answer.text
    return answer.headers["location"].removeprefix("http://sbf")


def log_in(world: World, sub: str, **query: str) -> tuple[ConsoleBrowser, httpx.Response]:
    browser = ConsoleBrowser(world)
    return browser, browser.get(authorize(begin(browser, **query), sub))


@pytest.mark.parametrize(
    ("sub", "shown"), [("1", "alice user"), ("2", "eva operator"), ("3", "ivo site-administrator of brno")]
)
def test_the_groups_of_a_user_determine_the_role(connected: World, sub: str, shown: str) -> None:
    browser, _ = log_in(connected, sub)
    assert shown in text_of(browser.get("/console/"))


def test_a_user_of_the_provider_sees_own_clusters_only(connected: World) -> None:
    connected.put("hers", spec("brno-h1", owner="alice"))
    connected.put("his", spec("brno-h2", owner="bob"))
    page = log_in(connected, "1")[0].get("/console/clusters").text
    assert ("clusters/hers" in page, "clusters/his" in page) == (True, False)


def test_the_login_leads_to_the_requested_page(connected: World) -> None:
    """SBF answers with a page that leads to the requested page, and not with a redirection.

    In a redirection that begins at the provider, the browser would omit the cookie, which is SameSite=Strict.
    """
    _, answer = log_in(connected, "1", next="/console/clusters")
    assert (answer.status_code, 'content="0;url=/console/clusters"' in answer.text) == (200, True)


def test_the_machines_authorities_are_trusted_by_default(
    connected: World, issuer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Administrators add certificate authorities to the machine, not to the package certifi."""
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("certifi.where", lambda: "/missing.pem")
    assert begin(ConsoleBrowser(connected)).startswith(issuer)


def test_the_login_page_names_the_provider(connected: World) -> None:
    assert "Log in with Example University" in text_of(ConsoleBrowser(connected).get("/console/login"))


def test_a_user_without_a_name_is_refused_with_the_claims(connected: World) -> None:
    browser, answer = log_in(connected, "4")
    assert (answer.status_code, "no text in the claim 'uid'" in text_of(answer)) == (422, True)
    assert "virtcloud_session" not in browser.cookies


def test_the_answer_to_another_browser_is_refused(connected: World) -> None:
    """If SBF accepted the answer, an attacker could log in a victim's browser under the attacker's name."""
    address = authorize(begin(ConsoleBrowser(connected)), "1")
    victim = ConsoleBrowser(connected)
    begin(victim)
    answer = victim.get(address)
    assert (answer.status_code, "virtcloud_session" in victim.cookies) == (401, False)
    assert "belongs to another login: begin again" in text_of(answer)


def test_an_answer_without_a_login_is_refused(connected: World) -> None:
    answer = ConsoleBrowser(connected).get("/console/login/oidc/callback?code=x&state=y")
    assert (answer.status_code, "begin again" in text_of(answer)) == (401, True)


@pytest.mark.parametrize("state", [7, "\ud800", [["x"]]])
def test_a_forged_login_cookie_is_refused(connected: World, state: object) -> None:
    forged = json.dumps({"state": state, "nonce": "n", "verifier": "v", "target": "/console/"})
    cookies = httpx.Cookies({"virtcloud_oidc": urlsafe_b64encode(forged.encode()).decode()})
    answer = ConsoleBrowser(connected, cookies=cookies).get("/console/login/oidc/callback?code=x&state=y")
    assert (answer.status_code, "begin again" in text_of(answer)) == (401, True)


def test_a_code_is_valid_once(connected: World) -> None:
    browser = ConsoleBrowser(connected)
    address = authorize(begin(browser), "1")
    cookies = httpx.Cookies(browser.cookies)
    assert browser.get(address).status_code == 200
    assert ConsoleBrowser(connected, cookies=cookies).get(address).status_code in {401, 503}


@pytest.mark.parametrize("change", [{"client_id": "other"}, {"issuer": "http://localhost:1"}])
def test_an_id_token_of_another_client_or_issuer_is_refused(connected: World, change: dict[str, Any]) -> None:
    keys = connected.service.settings.console.oidc
    assert keys is not None
    pending, redirect = PendingLogin.make("/console/"), "http://sbf/console/login/oidc/callback"
    client = OidcClient(keys, connected.service.settings)
    address = authorize(client.make_authorization_url(pending, redirect), "1")
    code = httpx.URL(f"http://sbf{address}").params["code"]
    tokens = client._request_tokens(code, pending, redirect)
    assert client._verify(tokens["id_token"], pending.nonce)["sub"] == "1"
    with pytest.raises(Exception, match=r"not valid|did not answer"):
        OidcClient(keys.model_copy(update=change), client.settings)._verify(tokens["id_token"], pending.nonce)
    with pytest.raises(Exception, match="not valid"):
        client._verify(tokens["id_token"], "another nonce")


def test_the_error_about_a_silent_provider_suggests_a_token(connected: World) -> None:
    settings = connected.service.settings.console
    keys = settings.oidc
    assert keys is not None
    settings.__dict__["oidc"] = keys.model_copy(update={"issuer": "http://localhost:1"})
    answer = ConsoleBrowser(connected).get("/console/login/oidc")
    assert (answer.status_code, "log in with a token" in text_of(answer)) == (503, True)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), ("rubbish", "no certificate or crl found")]
)
def test_an_unusable_ca_file_is_logged_and_shown(
    connected: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    path = tmp_path / "provider.pem"
    if content is not None:
        path.write_text(content)
    settings = connected.service.settings
    keys = settings.console.oidc
    assert keys is not None
    settings.console.__dict__["oidc"] = keys.model_copy(update={"ca_file": path})
    log_provider_faults(settings)
    expected = f"console.oidc.ca_file {path}: expected certificates (PEM): "
    assert f'oidc_unusable why="{expected}' in caplog.text
    assert reason in caplog.text
    assert expected in text_of(ConsoleBrowser(connected).get("/console/login/oidc"))


def test_a_missing_client_secret_is_logged(connected: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "oidc.secret").unlink()
    log_provider_faults(connected.service.settings)
    assert f'oidc_unusable why="console.oidc.client_secret.file {tmp_path}/oidc.secret cannot be read' in caplog.text


def test_usable_files_of_a_provider_are_not_logged(connected: World, caplog: pytest.LogCaptureFixture) -> None:
    log_provider_faults(connected.service.settings)
    assert "oidc_unusable" not in caplog.text


def test_a_provider_login_is_refused_if_no_provider_is_configured(world: World) -> None:
    answer = ConsoleBrowser(world).get("/console/login/oidc")
    assert (answer.status_code, "no OpenID Connect provider" in text_of(answer)) == (404, True)


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"uid": "eva", "groups": ["cloud-admins", "netops"]}, Role.OPERATOR),
        ({"uid": "ivo", "groups": "netops"}, Role.SITE_ADMINISTRATOR),
        ({"uid": "alice", "groups": ["physics"]}, Role.USER),
    ],
)
def test_the_highest_role_applies(claims: dict[str, object], role: Role) -> None:
    roles = OidcRoles.model_validate(ROLES | {"users": ["physics"]})
    assert make_principal(claims, roles).role is role


@pytest.mark.parametrize("name", ["agent@brno-h1", "a b", "", None, 7])
def test_an_invalid_user_name_is_refused(name: object) -> None:
    with pytest.raises(BadInput):
        make_principal({"uid": name, "groups": ["cloud-admins"]}, OidcRoles.model_validate(ROLES))


def test_an_invalid_user_name_is_named_with_its_claim() -> None:
    with pytest.raises(BadInput, match=r"^the provider sent 'a b' in the claim 'uid': expected a user name: "):
        make_principal({"uid": "a b"}, OidcRoles.model_validate(ROLES))


def test_by_default_no_group_may_log_in() -> None:
    with pytest.raises(Forbidden, match="ask an operator of SBF for a role"):
        make_principal({"uid": "alice", "groups": ["physics"]}, OidcRoles(user_claim="uid"))


def test_logins_occupy_a_limited_number_of_threads(connected: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_login, "LOGINS", BoundedThreads(0, "logins"))
    monkeypatch.setattr(oidc_login, "THREAD_WAIT_S", 0.0)
    answers = [ConsoleBrowser(connected).get(f"/console/login/oidc{path}") for path in ("", "/callback")]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert "too many logins: 0 are running" in text_of(answers[0])
