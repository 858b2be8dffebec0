import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Route
from support.sbf_fakes.browser_visit import Visitor
from support.sbf_fakes.console_server import send_counters
from support.sbf_fakes.world import World, spec

from sbf_service.console import events
from sbf_service.store.users.tokens import revoke_token
from virtcloud.model.access import Role, TokenId
from virtcloud.model.cluster import ClusterState

PAGES = (
    "",
    "clusters",
    "clusters/climate-model",
    "clusters/climate-model/delete",
    "clusters/unknown",
    "sites/brno",
    "sites/praha",
    "sites/praha/quarantine/100/clean",
    "pools",
    "elements",
    "elements/brno-sw1",
    "elements/praha-h4",
    "troubles",
)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
MAX_SCREENSHOT = 150_000
SCREENSHOTS = "VIRTCLOUD_SCREENSHOTS"
"""The environment variable with the folder for screenshots. By default, the folder is temporary."""


def list_violations(visit_page: object) -> list[str]:
    found = Axe().run(visit_page, options=RULES).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary']}" for one in found]


def test_screenshots_show_the_pages(visit: Visitor, tmp_path: Path) -> None:
    folder = Path(os.environ.get(SCREENSHOTS, tmp_path))
    for name, path, scheme in (
        ("overview", "", "light"),
        ("cluster", "clusters/climate-model", "dark"),
        ("site", "sites/praha", "light"),
    ):
        page = visit(color_scheme=scheme, viewport={"width": 1120, "height": 860}).open(path)
        page.screenshot(path=folder / f"console-{name}.png")
        assert 10_000 < (folder / f"console-{name}.png").stat().st_size < MAX_SCREENSHOT


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(visit: Visitor, scheme: str) -> None:
    """axe-core checks names, roles, landmarks, the order of headings, and the contrast of texts."""
    visitor = visit(color_scheme=scheme)
    found = {path: violations for path in PAGES if (violations := list_violations(visitor.open(path)))}
    visitor.page.context.clear_cookies()
    found |= {"login": violations} if (violations := list_violations(visitor.open("login?reason=ended"))) else {}
    assert found == {}


def test_the_chosen_theme_overrides_the_browsers_theme(visit: Visitor) -> None:
    visitor = visit(color_scheme="light")
    page = visitor.open("")
    page.click("text=Theme: auto")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert list_violations(page) == []


def test_the_keyboard_opens_a_site_from_the_overview(visit: Visitor) -> None:
    """Without a mouse: skip the menu, skip the drawing, and open a site from the table."""
    page = visit().open("")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "skip-drawing":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "brno"
    page.keyboard.press("Enter")
    page.wait_for_url("**/sites/brno")


def test_a_change_appears_without_a_reload_and_keeps_the_focus(visit: Visitor, world: World) -> None:
    world.put("short", spec("brno-h1", "praha-h1", owner="alice"))
    world.settle()
    page = visit().open("clusters/short")
    page.locator("#live-state:not([hidden])").wait_for()
    page.evaluate("window.notReloaded = true")
    page.fill("#duration", "77h")
    page.locator("th a", has_text="brno-sw1").focus()
    world.delete("short")
    page.locator("h1 .badge", has_text="draining").wait_for()
    assert page.evaluate("window.notReloaded") is True
    assert page.evaluate("document.activeElement.textContent") == "brno-sw1"
    world.settle()


def test_a_change_before_the_event_stream_starts_is_shown(visit: Visitor, world: World) -> None:
    world.put("brief", spec("brno-h1", owner="alice"))
    world.settle()
    visitor = visit()

    def change_before_the_stream(route: Route) -> None:
        world.delete("brief")
        route.continue_()

    visitor.page.route("**/clusters/brief/events*", change_before_the_stream, times=1)
    page = visitor.open("clusters/brief")
    page.locator("h1 .badge", has_text="draining").wait_for()
    world.settle()
    page.locator("h1 .badge", has_text="released").wait_for()


def test_new_rates_appear_without_a_reload(visit: Visitor, world: World) -> None:
    page = visit(Role.USER, "alice").open("clusters/climate-model")
    page.locator("#live-state:not([hidden])").wait_for()
    page.evaluate("window.notReloaded = true")
    for received in (5_000_000_000, 5_000_000_000 + 30 * 2_500_000):
        world.clock.advance(30)
        send_counters(world, "climate-model", "brno-h1", "eth0.100#99", received)
    page.locator("td", has_text="2.5 MB/s").wait_for()
    assert page.evaluate("window.notReloaded") is True
    assert page.get_by_label("brno-h1: at most 2.5 MB/s received, at most 833.3 kB/s sent").is_visible()


def test_a_change_of_the_cluster_keeps_a_typed_duration(visit: Visitor, world: World) -> None:
    world.put("short", spec("brno-h1", owner="alice"), attempt=2)
    page = visit().open("clusters/short")
    page.locator("#live-state:not([hidden])").wait_for()
    page.fill("#duration", "77h")
    world.settle()
    page.locator("h1 .badge", has_text="active").wait_for()
    assert page.input_value("#duration") == "77h"
    page.click("button:has-text('Extend')")
    page.get_by_text("The lease was extended").wait_for()
    world.delete("short")
    world.settle()


def test_a_page_of_a_revoked_token_shows_the_login(visit: Visitor, world: World) -> None:
    visitor = visit(None)
    token = world.token(Role.USER, "alice")
    visitor.log_in(token)
    page = visitor.open("clusters/climate-model")
    page.locator("#live-state:not([hidden])").wait_for()
    with world.store.change() as unit:
        revoke_token(unit, TokenId(token.split("_")[1]))
    page.wait_for_url("**/login?reason=ended*")
    assert page.get_by_text("your token was revoked").is_visible()


def test_the_console_works_without_scripts(visit: Visitor, world: World) -> None:
    world.put("plain", spec("brno-h1", owner="alice"))
    world.settle()
    page = visit(Role.USER, "alice", java_script_enabled=False).open("clusters")
    page.click("text=plain")
    page.click("text=End the cluster…")
    page.click("button:has-text('End the cluster')")
    assert page.get_by_text("SBF removes the cluster now.").is_visible()
    assert world.view("plain").state is ClusterState.DRAINING
    world.settle()


@pytest.mark.parametrize("path", ["", "clusters/climate-model", "sites/praha", "troubles"])
def test_a_narrow_window_scrolls_in_one_direction_only(visit: Visitor, path: str) -> None:
    """WCAG 2.2, 1.4.10: the window is 320 pixels wide. Only tables and drawings scroll sideways, in their frames."""
    page = visit(viewport={"width": 320, "height": 700}).open(path)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_links_for_the_keyboard_are_hidden_in_narrow_windows(visit: Visitor) -> None:
    page = visit(viewport={"width": 375, "height": 700}).open("")
    links = page.locator(".skip, .skip-drawing")
    assert links.count() == 2
    assert [link.bounding_box()["width"] for link in links.all()] == [1, 1]


def test_a_long_key_does_not_cover_the_live_state(visit: Visitor, world: World) -> None:
    key = "long-" + "0123456789" * 5
    world.put(key, spec("brno-h2", owner="dana"))
    page = visit().open(f"clusters/{key}")
    badge, state = page.locator("h1 .badge").bounding_box(), page.locator("#live-state").bounding_box()
    assert badge["x"] + badge["width"] < state["x"] or badge["y"] > state["y"] + state["height"]


def test_one_open_page_too_many_shows_the_limit(visit: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 0)
    page = visit(Role.USER, "carol").open("")
    page.locator("#live-state.lost").wait_for()
    assert page.inner_text("#live-state").startswith("You have 0 other pages open that show changes")
