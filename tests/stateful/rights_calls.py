"""Calls of SBF's HTTP API with checks of the answers, for example that refusals change nothing."""

import asyncio
import json
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import httpx
from stateful.rights_model import ACTORS, OPERATOR, SCHEDULER, Actor, near_marks, reads, sees_devices
from support.sbf_fakes.http_calls import app_of
from support.sbf_fakes.openapi_document import openapi_document
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World

from sbf_service.http.app import answer_settled_polls
from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from virtcloud.client.connection import USER_AGENT
from virtcloud.model.access import Role
from virtcloud.model.views import ClusterView, Problem

Rows = dict[str, list[tuple[object, ...]]]
OUTSIDE = {"interface": "eth1", "addresses": ["198.51.100.7"], "publish_ports": "40000-40009"}
GATEWAYS = (gateway("brno-gw", ssh={"address": "gw.example.org"}, outside=OUTSIDE),)
IGNORED = {"tokens": "last_used_at", "elements": "last_seen"}
"""By table: the column that also changes when SBF refuses a call. SBF records when it last heard from a caller."""
UNPROVEN = "urn:virtcloud:problem:job-unproven"
WAITS = "urn:virtcloud:problem:attempt-waits"
"""The problem of a request that ends an earlier attempt, and must be repeated when this attempt has ended."""
NOWHERE = "nowhere"
"""A key of which no cluster exists."""


class CheckedCalls:
    """SBF with its callers, and calls with checks of the answers."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(f"sqlite:///{self.folder / 'sbf.db'}")
        furnish(self.world, topology_with_gateways(brno=GATEWAYS, praha=(gateway("praha-gw"),)))
        self.tokens = {actor: self.world.token(actor.role, actor.name, *actor.sites) for actor in ACTORS}
        self.dead: list[str] = []
        self.log: list[str] = []
        self.networks: dict[str, str] = {}
        """By cluster id: the id of the cluster whose network the cluster joined, or the cluster's own id."""
        self.troubles: dict[str, tuple[str, str]] = {}
        """By mark in an agent's error report: the id of the cluster that the error concerns, and the element."""
        self.devices: dict[str, tuple[str, str]] = {}
        """By mark: the id of the cluster that a device joins, and the device's user."""
        self.invited: set[tuple[str, str]] = set()
        """Pairs of a cluster's id and a user."""
        self.slugs = set(_problem_types())
        self.runner = asyncio.Runner()
        transport = httpx.ASGITransport(answer_settled_polls(app_of(self.world.service)), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://sbf", headers={"user-agent": USER_AGENT})
        self.database = sqlite3.connect(self.folder / "sbf.db")
        self.version = self.counted = -1
        self.refresh()

    def close(self) -> None:
        self.runner.run(self.http.aclose())
        self.runner.close()
        self.database.close()
        self.world.close()
        shutil.rmtree(self.folder)

    # What SBF stores.

    def refresh(self) -> None:
        """Read the database and all clusters again, if a transaction has changed the database."""
        version = self.read_version()
        if version == self.version:
            return
        self.version, self.rows = version, self.dump()
        with self.world.store.read() as unit:
            self.views = list_newest(unit, ClusterFilter(None, ended=True), 1000)
        for view in self.views:
            network = view if view.network is None else self.newest(view.network)
            self.networks.setdefault(view.id, view.id if network is None else network.id)

    def read_version(self) -> int:
        """Return a number that changes when another connection changes the database."""
        return int(self.database.execute("PRAGMA data_version").fetchone()[0])

    def dump(self) -> Rows:
        tables = self.database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {table: self._read_table(table) for (table,) in tables}

    def _read_table(self, table: str) -> list[tuple[object, ...]]:
        columns = [name for _, name, *_ in self.database.execute(f"PRAGMA table_info({table})")]
        kept = ", ".join(name for name in columns if name != IGNORED.get(table))
        return sorted(self.database.execute(f"SELECT {kept} FROM {table}"), key=repr)  # noqa: S608 - no input

    def mates(self, view: ClusterView) -> list[ClusterView]:
        """Return the other clusters of a cluster's network."""
        network = self.networks[view.id]
        return [other for other in self.views if other.id != view.id and self.networks[other.id] == network]

    def newest(self, key: str) -> ClusterView | None:
        return next((view for view in reversed(self.views) if view.key == key), None)

    # Calls.

    def send(
        self, token: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        sent = {"authorization": f"Bearer {token}"} | (headers or {})
        return self.runner.run(self.http.request(method, path, json=body, headers=sent))

    def call(self, actor: Actor, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """Make a call. Check the claims that hold for every call."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        answer = self.send(self.tokens[actor], method, path, body, named)
        where = f"{actor.name} ({actor.role}) {method} {path} {json.dumps(body)}: {answer.status_code} {answer.text}"
        self.log.append(where[:600])
        self.check_format(answer, where)
        if (answer.is_success and method != "GET") or WAITS in answer.text or UNPROVEN in answer.text:
            self.check_changes(actor, where)
        else:
            assert (changed := self.changed_tables()) == [], f"{where} changed {changed}"
        self.check_marks(actor, answer, f"{path} {json.dumps(body)}", where)
        return answer

    def check_format(self, answer: httpx.Response, where: str) -> None:
        assert answer.status_code < 500 or UNPROVEN in answer.text, where
        assert answer.status_code != 401, where
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", where
            document = Problem.model_validate_json(answer.content)
            assert (document.status, document.type in self.slugs) == (answer.status_code, True), where
            assert document.detail, where

    def changed_tables(self) -> list[str]:
        version = self.read_version()
        if version == self.version:
            return []
        self.version, rows = version, self.dump()
        return sorted(name for name in rows if rows[name] != self.rows[name])

    def check_changes(self, actor: Actor, where: str) -> None:
        """Check that a call changed only clusters that its caller may read, and clusters in the same network."""
        before = {view.id: view for view in self.views}
        self.refresh()
        changed = {view.id for view in self.views if view.id in before and _essence(view) != _essence(before[view.id])}
        permitted = [view for view in before.values() if reads(actor, view)]
        permitted += [mate for view in permitted for mate in self.mates(view)]
        assert changed <= {view.id for view in permitted}, f"{where} changed {changed}"

    def check_marks(self, actor: Actor, answer: httpx.Response, request: str, where: str) -> None:
        """Check that an answer contains no mark that the caller may not see, except marks in the request."""
        if actor.sees_everything and actor != SCHEDULER:
            return
        text = answer.text + " ".join(answer.headers.values())
        for mark in self.find_hidden(actor):
            assert mark in request or not re.search(rf"\b{re.escape(mark)}\b", text), f"{where} shows {mark}"

    def find_hidden(self, actor: Actor) -> set[str]:
        seen = [view for view in self.views if reads(actor, view)]
        invited = [view for view in self.views if (view.id, actor.name) in self.invited and actor.is_user]
        near = invited.copy()
        near += [mate for view in (*seen, *near) for mate in self.mates(view)]
        shown = {mark for view in (*seen, *near) for mark in near_marks(view)} | {view.id for view in (*seen, *invited)}
        administered = {view.id for view in self.views if sees_devices(actor, view)}
        on = {
            (one, part.element)
            for view in seen
            for one in (view.id, self.networks[view.id])
            for part in view.placements
        }
        shown |= {mark for mark, where in self.troubles.items() if where in on}
        shown |= {mark for mark, (where, user) in self.devices.items() if where in administered or actor.name == user}
        known = {mark for view in self.views for mark in (*near_marks(view), view.id)}
        return (known | self.troubles.keys() | self.devices.keys()) - shown

    # Comparisons of answers.

    def check_hidden(  # noqa: PLR0913, PLR0917 - a call, its caller and its answer
        self, actor: Actor, key: str, answer: httpx.Response, method: str, path: str, body: object
    ) -> None:
        """Check that the answers about an invisible cluster and about an unknown key are equal."""
        other = self.call(actor, method, path.replace(f"/{key}", f"/{NOWHERE}", 1), body)
        expected = other.status_code, other.text.replace(NOWHERE, key)
        assert (answer.status_code, answer.text) == expected, f"{actor} {method} {path}: {answer.text}"

    def repeat(self, actor: Actor, answer: httpx.Response, method: str, path: str, body: object = None) -> None:
        """Repeat an idempotent call. Check that the answer is the same, and that nothing changes."""
        rows = self.rows
        again = self.call(actor, method, path, body)
        assert again.is_success, f"{actor} repeats {method} {path}: {again.text}"
        assert again.json() == answer.json(), (
            f"{actor} repeats {method} {path}: {_first_difference(answer.text, again.text)}"
        )
        changed = sorted(name for name in self.rows if self.rows[name] != rows[name])
        assert changed == [], f"{actor} repeats {method} {path} {body}: changed {changed}"

    def as_operator(self, path: str) -> Any:
        answer = self.send(self.tokens[OPERATOR], "GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def actor(self, name: str, role: str) -> Actor:
        return next(actor for actor in ACTORS if (actor.name, actor.role) == (name, Role(role)))


def _problem_types() -> list[str]:
    schema = openapi_document()["components"]["schemas"]["Problem"]
    return list(schema["properties"]["type"]["enum"])


def _first_difference(one: str, other: str) -> str:
    begin = next((number for number, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), 0)
    return f"{one[max(0, begin - 60) : begin + 100]} became {other[max(0, begin - 60) : begin + 100]}"


def _essence(view: ClusterView) -> tuple[object, ...]:
    return view.state, view.lease_ends, view.spec, view.stopped_guests
