"""An emulated NetBox: the parts of its REST API that list sites, devices, interfaces, VLAN groups and VLANs.

The emulator provides:

- lists in pages with ``count`` and ``next``; ``previous`` is always null;
- brief nested objects, and choices as objects with value and label;
- tokens of both versions, and filters by repeated parameters;
- status 403 with ``detail`` for a missing or invalid token and for a missing permission;
- status 400 for a filter by an unknown slug.

``test_netbox_recording.py`` compares the emulator's answers with the answers of NetBox 4.6.8.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.programs.http_answers import HttpAnswer, HttpRequest, answer_json, serve_answers

TOKEN = "0123456789abcdef0123456789abcdef01234567"  # noqa: S105 - valid only in the emulator
TOKEN_V2 = f"nbt_0123456789ab.{TOKEN}"
AUTHORIZATIONS = {f"Token {TOKEN}", f"Bearer {TOKEN_V2}"}
Row = dict[str, Any]
LISTS = {
    "/api/dcim/sites/": "sites",
    "/api/dcim/devices/": "devices",
    "/api/dcim/interfaces/": "interfaces",
    "/api/ipam/vlan-groups/": "groups",
    "/api/ipam/vlans/": "vlans",
}


@dataclass
class EmulatedNetBox:
    """A NetBox with its objects.

    ``page`` is the setting MAX_PAGE_SIZE. ``denied`` contains the lists that the token's user may not view. If
    ``broken`` is not 0, each answer has this status and is no JSON.
    """

    page: int = 1000
    denied: set[str] = field(default_factory=set)
    broken: int = 0
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: {name: {} for name in LISTS.values()})
    requests: list[str] = field(default_factory=list)
    slugs: set[str] = field(default_factory=set)
    """The slugs of sites, roles and tags. A filter by another slug is refused."""
    url: str = ""
    _last: int = 0

    def _add(self, kind: str, **fields: Any) -> int:
        self._last += 1
        path = next(path for path, name in LISTS.items() if name == kind)
        row = {"id": self._last, "url": f"{self.url}{path}{self._last}/", "display": str(fields.get("name", ""))}
        self.rows[kind][self._last] = {**row, **fields}
        return self._last

    def _brief(self, kind: str, identifier: int, *keys: str) -> Row:
        row = self.rows[kind][identifier]
        return {key: row[key] for key in ("id", "url", "display", *keys)}

    def add_site(self, slug: str) -> int:
        self.slugs.add(slug)
        return self._add("sites", name=slug.title(), slug=slug, status=choice("active"), tags=[], custom_fields={})

    def add_device(
        self,
        site: int,
        name: str | None,
        role: str,
        tags: tuple[str, ...] = ("virtcloud",),
        **more: Any,
    ) -> int:
        platform, address = more.pop("platform", None), more.pop("address", None)
        self.slugs |= {role, *tags}
        return self._add(
            "devices",
            name=name,
            device_type={"id": 1, "display": "C9300", "model": "C9300", "slug": "c9300"},
            role=_slugged(role),
            platform=platform and _slugged(platform),
            site=self._brief("sites", site, "name", "slug"),
            status=choice("active"),
            virtual_chassis=None,
            primary_ip=address
            and {"id": 1, "display": address, "family": {"value": 4, "label": "IPv4"}, "address": address},
            tags=[_slugged(tag) for tag in tags],
            custom_fields={"virtcloud_name": None, **more},
        )

    def add_interface(self, device: int, name: str, lag: int | None = None) -> int:
        return self._add(
            "interfaces",
            device=self._brief("devices", device, "name"),
            name=name,
            type=choice("1000base-t"),
            enabled=True,
            lag=None if lag is None else self._brief("interfaces", lag, "device", "name"),
            cable=None,
            link_peers=[],
            link_peers_type=None,
            connected_endpoints=None,
            connected_endpoints_type=None,
            connected_endpoints_reachable=None,
            custom_fields={},
            tags=[],
        )

    def connect(self, a: int, b: int, *, by_panel: bool = False) -> None:
        """Connect two interfaces by a cable, or by two cables with a patch panel between them."""
        peer_type = "dcim.frontport" if by_panel else "dcim.interface"
        for one, other in ((a, b), (b, a)):
            brief = {
                **self._brief("interfaces", other, "device", "name"),
                "cable": {"id": 7, "display": "#7"},
                "_occupied": True,
            }
            peers = (
                [{"id": 900, "display": "1", "name": "1", "device": {"id": 901, "display": "panel"}}]
                if by_panel
                else [brief]
            )
            self.rows["interfaces"][one] |= {
                "cable": {"id": 7, "display": "#7"},
                "link_peers": peers,
                "link_peers_type": peer_type,
                "connected_endpoints": [brief],
                "connected_endpoints_type": "dcim.interface",
                "connected_endpoints_reachable": True,
            }

    def add_group(
        self, site: int, *ranges: list[int], name: str = "clusters", tags: tuple[str, ...] = ("virtcloud",)
    ) -> int:
        scope = {"scope_type": "dcim.site", "scope_id": site, "scope": self._brief("sites", site, "name", "slug")}
        tag_rows = [_slugged(tag) for tag in tags]
        return self._add("groups", name=name, slug=name, vid_ranges=list(ranges), tags=tag_rows, **scope)

    def add_vlan(
        self,
        vid: int,
        site: int | None = None,
        group: int | None = None,
        status: str = "active",
        tags: tuple[str, ...] = (),
    ) -> int:
        return self._add(
            "vlans",
            vid=vid,
            name=f"vlan-{vid}",
            site=None if site is None else self._brief("sites", site, "name", "slug"),
            group=None if group is None else self._brief("groups", group, "name", "slug"),
            status=choice(status),
            role=None,
            tags=[_slugged(tag) for tag in tags],
        )

    def answer(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(f"{request.method} {request.path}")
        address = urlsplit(request.path)
        kind = LISTS.get(address.path)
        if self.broken or kind is None:
            return HttpAnswer(self.broken or 404, b"<html>not an answer of the API</html>")
        authorization = request.headers.get("authorization")
        if authorization not in AUTHORIZATIONS:
            version = 2 if authorization and "nbt_" in authorization else 1
            invalid = f"Invalid v{version} token"
            detail = invalid if authorization else "Authentication credentials were not provided."
            return answer_json(403, {"detail": detail})
        if kind in self.denied:
            return answer_json(403, {"detail": "You do not have permission to perform this action."})
        if request.method != "GET":
            return answer_json(405, {"detail": f'Method "{request.method}" not allowed.'})
        return self._list(address.path, kind, parse_qs(address.query))

    def _list(self, path: str, kind: str, query: dict[str, list[str]]) -> HttpAnswer:
        for key in {"site", "role", "tag"} & query.keys():
            if unknown := [slug for slug in query[key] if slug not in self.slugs]:
                words = f"Select a valid choice. {unknown[0]} is not one of the available choices."
                return answer_json(400, {key: [words]})
        offset, limit = (int(query.pop(key, ["0"])[0]) for key in ("offset", "limit"))
        rows = [row for row in self.rows[kind].values() if all(_matches(row, key, query[key]) for key in query)]
        size = min(limit or self.page, self.page)
        following = offset + size
        rest = "".join(f"&{key}={value}" for key, values in query.items() for value in values)
        answer = {
            "count": len(rows),
            "next": f"{self.url}{path}?limit={size}&offset={following}{rest}" if following < len(rows) else None,
            "previous": None,
            "results": rows[offset:following],
        }
        return HttpAnswer(200, json.dumps(answer).encode(), {"API-Version": "4.4", "content-type": "application/json"})


def choice(value: str) -> Row:
    return {"value": value, "label": value.title()}


def _slugged(slug: str) -> Row:
    return {"id": sum(slug.encode()), "display": slug.title(), "name": slug.title(), "slug": slug}


def _matches(row: Row, key: str, values: list[str]) -> bool:
    """Return whether an object has all of ``values`` (key ``tag``), or one of ``values`` (any other key)."""
    if key == "tag":
        return set(values) <= {tag["slug"] for tag in row["tags"]}
    if key in {"site", "role"}:
        return bool(row[key]) and row[key]["slug"] in values
    if key in {"device_id", "group_id"}:
        nested = row[key.removesuffix("_id")]
        return bool(nested) and str(nested["id"]) in values
    return str(row[key]) in values


@contextmanager
def serve_netbox(**options: Any) -> Iterator[EmulatedNetBox]:
    netbox = EmulatedNetBox(**options)
    with serve_answers(netbox.answer) as netbox.url:
        yield netbox
