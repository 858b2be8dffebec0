from pathlib import Path

import pytest
from support.sbf_fakes.console_browser import ConsoleBrowser, logged_in, text_of
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World

from virtcloud.model.access import Role

COOKIE = "virtcloud_session"


def test_a_token_opens_a_session(world: World) -> None:
    browser = ConsoleBrowser(world)
    answer = browser.log_in(world.token(Role.USER, "alice"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")
    assert "alice user" in text_of(browser.get("/console/"))


@pytest.mark.parametrize(
    ("scheme", "name", "attributes"),
    [
        ("http", "virtcloud_session", {"HttpOnly", "SameSite=strict", "Path=/"}),
        ("https", "__Host-virtcloud_session", {"HttpOnly", "SameSite=strict", "Path=/", "Secure"}),
    ],
)
def test_the_cookie_is_protected(world: World, scheme: str, name: str, attributes: set[str]) -> None:
    browser = ConsoleBrowser(world, scheme)
    parts = browser.log_in(world.token(Role.USER, "alice")).headers["set-cookie"].split("; ")
    assert parts[0].startswith(f"{name}=")
    assert {part for part in parts[1:] if not part.startswith("Max-Age")} == attributes


def test_the_cookie_does_not_contain_the_token(world: World) -> None:
    token = world.token(Role.USER, "alice")
    cookie = ConsoleBrowser(world).log_in(token).headers["set-cookie"]
    assert token.split("_", 2)[2] not in cookie


@pytest.mark.parametrize(
    ("token", "status", "remedy"),
    [
        ("hunter2", 401, "paste the whole token"),
        ("", 401, "paste the whole token"),
        ("vc_aaaaaaaa_" + "A" * 43, 401, "check the token and the address of SBF"),
    ],
)
def test_a_wrong_token_is_refused_with_a_remedy(world: World, token: str, status: int, remedy: str) -> None:
    browser = ConsoleBrowser(world)
    answer = browser.log_in(token)
    assert (answer.status_code, remedy in text_of(answer), COOKIE in browser.cookies) == (status, True, False)


@pytest.mark.parametrize("role", [Role.AGENT, Role.SCHEDULER, Role.JOB_STARTER])
def test_a_programs_token_opens_no_session(world: World, role: Role) -> None:
    browser = ConsoleBrowser(world)
    answer = browser.log_in(world.token(role, "brno-h1"))
    assert (answer.status_code, COOKIE in browser.cookies) == (403, False)
    assert "ask an operator for a token of your own" in text_of(answer)


def test_many_wrong_tokens_block_logins_for_a_while(world: World) -> None:
    browser = ConsoleBrowser(world)
    for _ in range(20):
        browser.log_in("vc_aaaaaaaa_" + "A" * 43)
    answer = browser.log_in(world.token(Role.USER, "alice"))
    assert (answer.status_code, "try again in" in text_of(answer)) == (429, True)


@pytest.mark.parametrize("path", ["/console/", "/console/clusters/demo", "/console/elements", "/console/nothing"])
def test_a_page_without_a_session_leads_to_the_login(world: World, path: str) -> None:
    answer = ConsoleBrowser(world).get(path)
    location = answer.headers["location"]
    assert (answer.status_code, location.split("&")[0]) == (303, "/console/login?reason=needed")
    page = ConsoleBrowser(world).get(location)
    assert f'name="next" value="{path}"' in page.text


def test_a_login_returns_to_the_requested_page(world: World) -> None:
    answer = ConsoleBrowser(world).log_in(world.token(Role.USER, "alice"), next="/console/clusters")
    assert answer.headers["location"] == "/console/clusters"


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example/console/", "/v1/tokens", "/console//evil.example", "/console/\\x"],
)
def test_a_login_leads_to_no_other_site(world: World, target: str) -> None:
    answer = ConsoleBrowser(world).log_in(world.token(Role.USER, "alice"), next=target)
    assert answer.headers["location"] == "/console/"


def test_the_session_ends_when_the_token_is_revoked(world: World) -> None:
    token = world.token(Role.USER, "alice")
    browser = ConsoleBrowser(world)
    browser.log_in(token)
    assert browser.get("/console/").status_code == 200
    ask(world, "DELETE", f"/v1/tokens/{token.split('_')[1]}")
    answer = browser.get("/console/")
    assert answer.headers["location"].startswith("/console/login?reason=ended")
    assert "your token was revoked or has expired" in text_of(browser.get(answer.headers["location"]))


def test_the_session_ends_when_the_token_expires(world: World) -> None:
    browser = ConsoleBrowser(world)
    browser.log_in(world.token(Role.USER, "alice", expires_in_s=60))
    world.clock.advance(61)
    assert browser.get("/console/").status_code == 303


def test_the_session_ends_after_the_configured_time(world: World) -> None:
    browser = logged_in(world)
    world.clock.advance(28799)
    assert browser.get("/console/").status_code == 200
    world.clock.advance(2)
    assert browser.get("/console/").status_code == 303


def test_a_logout_ends_the_session_at_sbf(world: World) -> None:
    browser = logged_in(world)
    copied = ConsoleBrowser(world, cookies=browser.cookies)
    answer = browser.post("/console/logout")
    assert answer.headers["location"] == "/console/login?reason=out"
    assert (COOKIE in browser.cookies, copied.get("/console/").status_code) == (False, 303)


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_form_without_the_sessions_token_does_nothing(world: World, token: str) -> None:
    browser = logged_in(world)
    answer = browser.request("POST", "/console/logout", {"form_token": token})
    assert (answer.status_code, browser.get("/console/").status_code) == (403, 200)
    assert "open the page again" in text_of(answer)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_a_form_of_another_site_is_refused(world: World, headers: dict[str, str]) -> None:
    fields = {"token": world.token(Role.USER, "alice")}
    browser = ConsoleBrowser(world)
    answer = browser.request("POST", "/console/login", fields, headers)
    assert (answer.status_code, COOKIE in browser.cookies) == (403, False)


def test_a_link_from_another_site_reloads_the_page(world: World) -> None:
    """The cookie is SameSite=Strict. After a click on another site's link, only a reload sends the cookie."""
    answer = ConsoleBrowser(world).get("/console/clusters", sec_fetch_site="cross-site")
    assert (answer.status_code, 'http-equiv="refresh"' in answer.text) == (200, True)


def test_a_long_form_is_refused(world: World) -> None:
    answer = ConsoleBrowser(world).log_in("x" * 70_000)
    assert (answer.status_code, "got more: shorten the text" in text_of(answer)) == (413, True)


def test_a_form_with_many_fields_is_refused(world: World) -> None:
    fields = {f"field{number}": "x" for number in range(101)}
    answer = ConsoleBrowser(world).request("POST", "/console/login", fields)
    assert (answer.status_code, "expected at most 100 fields" in text_of(answer)) == (422, True)


@pytest.mark.parametrize("path", ["/console/login", "/console/", "/console/nothing"])
def test_every_page_forbids_foreign_and_inline_content(world: World, path: str) -> None:
    policy = logged_in(world).get(path).headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "unsafe" in policy, "http" in policy) == (True, False, False)


def test_sbf_stores_no_secret_of_a_session(world: World) -> None:
    secret = logged_in(world).cookies[COOKIE]
    files = world.database.removeprefix("sqlite:///").rpartition("/")[0]
    assert all(secret.encode() not in file.read_bytes() for file in Path(files).glob("sbf.db*"))


def test_the_theme_is_remembered(world: World) -> None:
    browser = ConsoleBrowser(world)
    browser.request("POST", "/console/theme", {"theme": "dark", "here": "/console/login"})
    assert '<html lang="en" data-theme="dark">' in browser.get("/console/login").text


@pytest.mark.parametrize(
    "path", ["/console/../v1/whoami", "/console/static/../../../settings.py", "/console/%2e%2e/v1/tokens"]
)
def test_console_paths_with_dots_lead_to_no_other_resource(world: World, path: str) -> None:
    assert ConsoleBrowser(world).get(path).status_code in {303, 401, 404}


def test_the_root_leads_browsers_to_the_console(world: World) -> None:
    browser = ConsoleBrowser(world)
    assert browser.get("/").headers["location"] == "/console/"
    assert browser.request("GET", "/", headers={"accept": "*/*"}).status_code == 401


def test_the_cookie_of_a_session_authorizes_no_api_call(world: World) -> None:
    """If the cookie authorized API calls, a page of another web site could cause API calls."""
    assert logged_in(world).get("/v1/whoami").status_code == 401


def test_the_theme_cookie_does_not_count_as_an_ended_session(world: World) -> None:
    browser = ConsoleBrowser(world)
    browser.request("POST", "/console/theme", {"theme": "dark"})
    assert "reason=needed" in browser.get("/console/").headers["location"]
