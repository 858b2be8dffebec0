"""Tests of the login with OpenID Connect in Chromium, with a real provider on the loopback interface."""

import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from authlib.deprecate import AuthlibDeprecationWarning
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import APIResponse, Browser, Page, Route
from support.sbf_fakes.console_server import furnish_university, running_console
from support.sbf_fakes.world import World, make_world

from sbf_service.settings import OidcKeys

with warnings.catch_warnings():
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    import oidc_provider_mock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the provider uses deprecated names of authlib

USERS = {
    "1": {"uid": "alice", "groups": ["physics"]},
    "2": {"uid": "eva", "groups": ["cloud-admins"]},
    "3": {"uid": "eve", "groups": ["guests"]},
}
ROLES = {"user_claim": "uid", "operators": ["cloud-admins"], "users": ["physics"]}
HERE = ("localhost", "127.0.0.1")
LOGIN = "text=Log in with Example University"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    users = [oidc_provider_mock.User(sub=sub, claims=claims) for sub, claims in USERS.items()]
    with oidc_provider_mock.run_server_in_thread(user_claims=users, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def world(tmp_path: Path, issuer: str) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.clock.now = datetime.now(UTC).replace(microsecond=0)
    furnish_university(installation)
    (secret := tmp_path / "oidc.secret").write_text("s3cret\n")
    keys = {"client_secret": {"file": str(secret)}, "issuer": issuer, "client_id": "sbf"}
    keys |= {"name": "Example University", "roles": ROLES}
    installation.service.settings.console.__dict__["oidc"] = OidcKeys.model_validate(keys)
    yield installation
    installation.service.settings.console.__dict__["oidc"] = None
    installation.close()


@pytest.fixture
def address(world: World) -> Iterator[str]:
    with running_console(world) as found:
        yield found


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()

    def admit(route: Route) -> None:
        route.continue_() if urlsplit(route.request.url).hostname in HERE else route.abort()

    context.route("**/*", admit)
    yield context.new_page()
    context.close()


@pytest.fixture
def log_in(page: Page, address: str) -> Callable[..., None]:

    def click_through(sub: str, path: str = "") -> None:
        page.goto(f"{address}/console/{path}")
        page.click(LOGIN)
        page.click(f"button[name=sub][value='{sub}']")

    return click_through


def move_provider(world: World, issuer: str) -> None:
    console = world.service.settings.console
    assert console.oidc is not None
    console.__dict__["oidc"] = console.oidc.model_copy(update={"issuer": issuer})


def test_a_login_leads_to_the_requested_page(page: Page, log_in: Callable[..., None]) -> None:
    """The session cookie is SameSite=Strict, but the browser sends it after the provider's redirection."""
    log_in("1", "clusters/climate-model")
    page.wait_for_url("**/console/clusters/climate-model")
    assert page.inner_text(".who") == "alice user"
    assert "Cluster climate-model" in page.inner_text("h1")


def test_a_user_without_a_group_learns_what_to_do(page: Page, log_in: Callable[..., None]) -> None:
    log_in("3")
    page.locator("#login-error").wait_for()
    assert "eve may not log in" in page.inner_text("#login-error")
    assert "got guests; ask an operator of SBF for a role" in page.inner_text("#login-error")
    assert page.get_attribute("#token", "aria-invalid") is None
    assert Axe().run(page).response["violations"] == []


def test_an_answer_with_a_wrong_state_logs_nobody_in(page: Page, address: str) -> None:
    page.goto(f"{address}/console/login")
    page.click(LOGIN)
    page.goto(f"{address}/console/login/oidc/callback?code=stolen&state=wrong")
    assert "belongs to another login: begin again" in page.inner_text("#login-error")
    page.click(LOGIN)
    page.click("button[name=sub][value='2']")
    page.wait_for_url("**/console/")
    assert page.inner_text(".who") == "eva operator"


def test_the_login_page_shows_an_error_if_the_provider_fails(
    page: Page, world: World, issuer: str, address: str
) -> None:
    move_provider(world, "http://localhost:1")
    page.goto(f"{address}/console/clusters")
    page.click(LOGIN)
    assert "did not answer" in page.inner_text("#login-error")
    assert "try again later, or log in with a token" in page.inner_text("#login-error")
    assert page.locator("#token").is_visible()
    move_provider(world, issuer)
    page.click(LOGIN)
    page.click("button[name=sub][value='1']")
    page.wait_for_url("**/console/clusters")


def test_a_provider_that_dies_during_the_login_is_reported(page: Page, world: World, address: str) -> None:
    page.goto(f"{address}/console/login")
    page.click(LOGIN)
    move_provider(world, "http://localhost:1")
    page.click("button[name=sub][value='1']")
    page.locator("#login-error").wait_for()
    assert "did not answer" in page.inner_text("#login-error")


def test_after_an_expired_session_a_login_returns_to_the_page(
    page: Page, world: World, log_in: Callable[..., None]
) -> None:
    log_in("1", "clusters/climate-model")
    page.locator("#live-state:not([hidden])").wait_for()
    world.clock.advance(world.service.settings.console.session + 1)
    page.wait_for_url("**/login?reason=ended*")
    assert page.get_by_text("Your session has ended").is_visible()
    page.click(LOGIN)
    page.click("button[name=sub][value='1']")
    page.wait_for_url("**/console/clusters/climate-model")


def test_after_a_logout_no_page_is_shown_again(page: Page, log_in: Callable[..., None]) -> None:
    """The browser stores no page of the console, so the browser's button "back" shows the login page."""
    log_in("1", "clusters/climate-model")
    page.click("text=Log out")
    page.get_by_text("You have logged out.").wait_for()
    page.go_back()
    page.wait_for_url("**/login?reason=*")
    assert page.locator("#token").is_visible()


def test_a_logout_shows_its_own_message_despite_the_ended_session(page: Page, log_in: Callable[..., None]) -> None:
    """The stream of events reports the end of the session before the answer to the logout arrives."""
    log_in("1", "clusters/climate-model")
    page.wait_for_url("**/console/clusters/climate-model")
    other = page.context.new_page()
    other.goto(page.url)
    for one in (page, other):
        one.locator("#live-state:not([hidden])").wait_for()
    answers: list[tuple[Route, APIResponse]] = []
    page.route("**/logout", lambda route: answers.append((route, route.fetch(max_redirects=0))))
    page.get_by_text("Log out").click(no_wait_after=True)
    other.wait_for_url("**/login?reason=*")
    ((route, answer),) = answers
    route.fulfill(response=answer)
    page.get_by_text("You have logged out.").wait_for()
