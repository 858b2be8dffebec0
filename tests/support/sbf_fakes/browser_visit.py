from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

HARMLESS = ("Password forms should have", "the server responded with a status of")
"""Parts of Chromium messages that report no fault.

The first message concerns the login form, which has no field for a user name, because SBF knows the token's holder. The
second message concerns pages that show an error, because such a page has the error's HTTP status. This message also
appears for missing static files, which ``Visit.missing`` lists.
"""


@dataclass
class Visit:
    """A page of a browser, with all requests and all messages of Chromium's console."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """The URLs of static files for which SBF answered with an error."""

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.address}/console/{path}")
        return self.page

    def log_in(self, token: str) -> None:
        self.open("login")
        self.page.fill("#token", token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url("**/console/")


Visitor = Callable[..., Visit]
"""The type of the fixture ``visit``, a function that opens a browser and logs in."""
