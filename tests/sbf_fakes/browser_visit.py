"""Visits of the console's pages in a real browser, with everything that the browser requests and reports."""

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

HARMLESS = ("Password forms should have", "the server responded with a status of")
"""Messages of Chromium that are no faults: the form has no user name, because a token names its holder; a page of an
error has the status of the error. Missing static files are found by their answers.
"""


@dataclass
class Visit:
    """A page of a browser, with all requests and all messages of Chromium's console."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Static files that SBF does not have."""

    def open(self, path: str) -> Page:
        """Open a page of the console."""
        self.page.goto(f"{self.address}/console/{path}")
        return self.page

    def log_in(self, token: str) -> None:
        """Log in with a token."""
        self.open("login")
        self.page.fill("#token", token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url("**/console/")


Visitor = Callable[..., Visit]
"""Opens a browser and logs in."""
