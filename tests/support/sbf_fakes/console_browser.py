"""A browser that runs no scripts, for the console of a :class:`World`'s service."""

import asyncio
import re
from dataclasses import dataclass, field
from html import unescape

import httpx
from fastapi import APIRouter

from sbf_service.console.app import add_console, add_error_pages
from sbf_service.http.app import create_app
from support.sbf_fakes.world import World
from virtcloud.model.access import Role

ROUTERS: list[APIRouter] = []
"""The router that all applications share, because FastAPI analyses routes slowly. Empty until the first request."""
FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')
TAGS = re.compile(r"<[^>]*>")


@dataclass
class ConsoleBrowser:
    """A browser whose methods return after the request is complete."""

    world: World
    scheme: str = "http"
    cookies: httpx.Cookies = field(default_factory=httpx.Cookies)

    def request(
        self, method: str, path: str, fields: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request, and store the cookies of the answer. Do not follow redirections."""

        async def call() -> httpx.Response:
            app = create_app(self.world.service)
            add_error_pages(app)
            if not ROUTERS:
                ROUTERS.append(add_console(app).router)
            app.router = ROUTERS[0]
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url=f"{self.scheme}://sbf", cookies=self.cookies
            ) as http:
                answer = await http.request(
                    method, path, data=fields, headers={"accept": "text/html"} | (headers or {})
                )
                self.cookies = http.cookies
                return answer

        return asyncio.run(call())

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, **fields: str) -> httpx.Response:
        found = FORM_TOKEN.search(self.get("/console/clusters").text)
        return self.request("POST", path, {"form_token": found[1] if found else ""} | fields)

    def log_in(self, token: str, **fields: str) -> httpx.Response:
        return self.request("POST", "/console/login", {"token": token} | fields)


def text_of(answer: httpx.Response) -> str:
    return " ".join(unescape(TAGS.sub(" ", answer.text)).split())


def logged_in(world: World, role: Role = Role.OPERATOR, name: str = "eva", *sites: str) -> ConsoleBrowser:
    browser = ConsoleBrowser(world)
    assert browser.log_in(world.token(role, name, *sites)).status_code == 303
    return browser
