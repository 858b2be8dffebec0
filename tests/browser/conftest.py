import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from support.sbf_fakes.browser_visit import HARMLESS, Visit, Visitor
from support.sbf_fakes.console_server import furnish_university, running_console
from support.sbf_fakes.world import World, make_world

from virtcloud.model.access import Role

REQUIRED = "VIRTCLOUD_REQUIRE_LAB"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium, and yield the browser.

    If Chromium is missing, skip the tests, or raise AssertionError if ``VIRTCLOUD_REQUIRE_LAB`` is set.
    """
    program = shutil.which("chromium")
    if program is None:
        assert not os.environ.get(REQUIRED), "chromium is missing: apt-get install chromium"
        pytest.skip("NOT TESTED: chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    installation = make_world(tmp_path_factory.mktemp("browser"))
    installation.clock.now = datetime.now(UTC).replace(microsecond=0)
    furnish_university(installation)
    yield installation
    installation.close()


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    with running_console(world) as found:
        yield found


@pytest.fixture
def visit(chromium: Browser, world: World, address: str) -> Iterator[Visitor]:
    """Return a function that opens a browser and logs in. After the test, check all requests and messages.

    Every request must go to SBF, and no static file may be missing. Chromium's console may contain only ``HARMLESS``
    messages.
    """
    visits: list[Visit] = []

    def make(role: Role | None = Role.OPERATOR, name: str = "eva", *sites: str, **options: Any) -> Visit:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        found = Visit(context.new_page(), address)
        context.on("request", lambda request: found.requests.append(request.url))
        context.on(
            "response", lambda answer: found.missing.extend([answer.url] * (not answer.ok and "/static/" in answer.url))
        )
        context.on("console", lambda message: found.messages.append(f"{message.type}: {message.text}"))
        context.on("weberror", lambda error: found.messages.append(f"error: {error.error}"))
        visits.append(found)
        if role is not None:
            found.log_in(world.token(role, name, *sites))
        return found

    yield make
    for one in visits:
        one.page.context.close()
        assert [url for url in one.requests if not url.startswith(f"{address}/")] == []
        assert one.missing == []
        assert [text for text in one.messages if not any(part in text for part in HARMLESS)] == []
