"""Rendering of pages: Jinja2 templates, their filters, and the headers of every answer.

Jinja2 escapes all values, because users and devices determine some of the texts. The Content Security Policy forbids
inline scripts and styles, and everything from other hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from sbf_service.console.troubles import Level
from virtcloud.model.durations import format_duration
from virtcloud.model.message_text import printable
from virtcloud.model.values import format_utc

PREFIX: Final = "/console"
FOLDER: Final = Path(__file__).parent
STATIC_FOLDER: Final = FOLDER / "static"
STATIC_PREFIX: Final = f"{PREFIX}/static"
HTMX: Final = "htmx-2.0.11.min.js"
"""The file of the library htmx, which is a part of this package (decision 76)."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "virtcloud_theme"


DONE: Final = {
    "ended": (Level.OK, "SBF removes the cluster now."),
    "over": (Level.OK, "The cluster has ended."),
    "extended": (Level.OK, "The lease was extended to the requested time, or already had a later end."),
    "clean": (Level.OK, "The VLAN ID was declared clean. The audit log has your name and the reason."),
    "unneeded": (Level.OK, "The VLAN ID was not in quarantine, so SBF changed nothing."),
    "mended": (
        Level.OK,
        "SBF read the device, and corrected the differences from the wanted state. The audit log has the changes.",
    ),
    "equal": (Level.OK, "SBF read the device. The device has its wanted state."),
    "unread": (Level.FAILED, "SBF could not read or correct the device. The trouble and its remedy are below."),
}
"""The messages after an action, each with its level. A page shows the message whose key is the value of the query
parameter ``done`` in the page's URL.
"""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The reader of a page. ``reads_elements``: the reader may read elements."""

    name: str
    role: str
    sites: tuple[str, ...]
    form_token: str
    reads_elements: bool


def render(request: Request, template: str, values: Mapping[str, object], status: int = HTTPStatus.OK) -> HTMLResponse:
    """Return a page. The visitor of an authenticated session is in ``request.state``."""
    context = {
        "visitor": getattr(request.state, "visitor", None),
        "theme": chosen_theme(request),
        "done": DONE.get(request.query_params.get("done", "")),
        "path": request.url.path,
        "here": f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path,
    }
    text = make_environment().get_template(template).render({**context, **values})
    return HTMLResponse(text, status, HEADERS)


def chosen_theme(request: Request) -> str:
    """Return the theme that the reader chose. The default ``auto`` is the theme of the browser."""
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return theme if theme in THEMES else "auto"


@cache
def make_environment() -> Environment:
    """Return the templates with their filters.

    Read all templates now: an upgrade replaces the files while the former version of SBF still runs.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": show_moment,
        "ago": describe_age,
        "shown": printable,
        "count": count,
        "size": show_size,
        "rate": show_rate,
    }
    environment.globals |= {"asset": asset_path, "prefix": PREFIX, "htmx": HTMX}
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


def asset_path(name: str) -> str:
    """Return the path of a static file. The path changes with the file's content."""
    return f"{STATIC_PREFIX}/{name}?v={_digest(name)}"


@cache
def _digest(name: str) -> str:
    return sha256((STATIC_FOLDER / name).read_bytes()).hexdigest()[:12]


def show_moment(moment: datetime | None) -> Markup | str:
    """Return a time as an element of HTML, or ``never`` for None."""
    if moment is None:
        return "never"
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), format_utc(moment))


def describe_age(moment: datetime | None) -> str:
    """Return the duration between a time and now: ``3m ago`` (past), ``in 2h`` (future), or ``never`` for None."""
    if moment is None:
        return "never"
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"{format_duration(seconds, 1)} ago" if seconds >= 0 else f"in {format_duration(-seconds, 1)}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``1 host``, ``2 hosts``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def show_size(number: int) -> str:
    """Return a number of bytes with a unit: ``1.5 MB``."""
    size, units = float(number), ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while size >= 1000 and len(units) > 1:  # noqa: PLR2004 - SI prefixes
        size, units = size / 1000, units[1:]
    return f"{number} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def show_rate(rate: float | None) -> str:
    """Return a rate in bytes per second with a unit: ``1.5 MB/s``; ``unknown`` for None."""
    return "unknown" if rate is None else f"{show_size(round(rate))}/s"
