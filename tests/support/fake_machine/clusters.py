"""An SBF in memory for tests of the command line. Each long poll of a cluster moves the cluster to its next state."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView

Answer = tuple[int, bytes]
LEASE_ENDS = datetime(2026, 7, 1, 12, tzinfo=UTC)
NEXT = {
    ClusterState.CONFIGURING: ClusterState.ACTIVE,
    ClusterState.DRAINING: ClusterState.RELEASED,
    ClusterState.FAILING: ClusterState.FAILED,
}
PROGRESS = {
    ClusterState.CONFIGURING: PlacementProgress.ADDING,
    ClusterState.ACTIVE: PlacementProgress.CONFIRMED,
    ClusterState.DRAINING: PlacementProgress.REMOVING,
    ClusterState.FAILING: PlacementProgress.REMOVING,
    ClusterState.RELEASED: PlacementProgress.REMOVED,
    ClusterState.FAILED: PlacementProgress.REMOVED,
}
SITE: dict[str, Any] = {
    "name": "brno",
    "hosts": ["h1", "h2"],
    "pool": "100-199",
    "claimed": "100",
    "quarantined": "",
    "free": "101-199",
}
SWITCH = {"name": "brno-sw", "kind": "switch", "site": "brno", "wanted_revision": 4, "confirmed_revision": 3}
TOPOLOGY = {"name": "small", "sites": [{"name": "brno", "switches": [{"name": "s", "ports": ["p"], "platform": "x"}]}]}

DOCUMENTS: dict[str, Any] = {
    "/v1/sites": [SITE],
    "/v1/sites/brno": SITE,
    "/v1/sites/brno/pool": {"vlans": "100-199"},
    "/v1/elements": [SWITCH],
    "/v1/elements/brno-sw": {**SWITCH, "trouble": "it does not answer", "carried": {"p1": "100,102", "p2": ""}},
    "/v1/topology": TOPOLOGY,
    "/v1/whoami": {"name": "pbs", "role": "scheduler"},
}


class FakeSbf:
    """An SBF in memory.

    If ``stuck`` is true, a long poll changes neither a cluster's state nor a guest's confirmed revision. ``next`` maps
    each state to the next state. ``refused`` maps a cluster's key to the problem (status, slug, detail) that answers
    the cluster's creation. ``refuses``, if not None, is the problem for all other keys. For a key in ``mute``, the
    creation succeeds, but the answer has status 503.
    """

    def __init__(self) -> None:
        self.url = ""
        self.clusters: dict[str, ClusterView] = {}
        self.requests: list[ClusterRequest] = []
        self.stuck = self.is_old = False
        self.refuses: tuple[int, str, str] | None = None
        self.mute: set[str] = set()
        self.refused: dict[str, tuple[int, str, str]] = {}
        self.next = dict(NEXT)
        self.put: list[tuple[str, dict[str, object]]] = []
        self.matched: list[str] = []
        self.preview: dict[str, object] = {}
        self.change_preview: dict[str, object] = {}
        self.guest: dict[str, object] = {
            "name": "g1",
            "cluster": "demo",
            "host": "brno-h1",
            "image": "busybox",
            "addresses": ["10.0.0.1/24"],
            "power": "on",
            "resets": 0,
            "wanted_revision": 7,
            "confirmed_revision": 7,
        }
        self.networks: dict[str, list[str]] = {}
        self.traffic: list[dict[str, object]] = []
        self.listed: list[dict[str, list[str]]] = []

    def answer(self, method: str, path: str, body: bytes) -> Answer:  # noqa: C901, PLR0911 - one case for each kind of request
        parts = urlsplit(path)
        match parts.path.split("/")[2:]:
            case ["clusters"]:
                self.listed.append(parse_qs(parts.query))
                network = self.listed[-1].get("network")
                keys = self._network_keys(network[0]) if network else self._running_keys()
                return _json([json.loads(self.clusters[key].model_dump_json()) for key in keys if key in self.clusters])
            case [*_, "dry-run"]:
                return _json(self.change_preview)
            case ["clusters", _] if "dry_run=true" in parts.query:
                return _json(self.preview)
            case ["clusters", _, "traffic"]:
                return _json(self.traffic)
            case ["clusters", _, "guests", *name]:
                return self._guest(method, name, body, waits="after=" in parts.query)
            case ["clusters", key]:
                return self._cluster(method, key, body, waits="after=" in parts.query)
        if method != "GET" and body:
            self.put.append((path, json.loads(body)))
        if "/shares/" in parts.path:
            return self._share(method, *parts.path.split("/")[3:6:2])
        if method == "PUT":
            return 200, body
        if parts.path.endswith("/lease"):
            return self._extend_lease(parts.path.split("/")[3], json.loads(body)["seconds"])
        if parts.path in DOCUMENTS:
            return _json(DOCUMENTS[parts.path])
        return _problem(404, "not-found", f"no resource at {parts.path}")

    def _guest(self, method: str, name: list[str], body: bytes, *, waits: bool) -> Answer:
        if method == "PUT":
            self.put.append(("power", json.loads(body)))
            asked = {key: value for key, value in json.loads(body).items() if value is not None}
            self.guest |= asked | {"wanted_revision": 8}
        elif waits and not self.stuck:
            self.guest["confirmed_revision"] = self.guest["wanted_revision"]
        return _json(self.guest if name else [self.guest])

    def _extend_lease(self, key: str, seconds: float) -> Answer:
        """Extend a cluster's lease to ``seconds`` from now. Never shorten the lease.

        This fake has no clock. It assumes that one hour of the present lease remains.
        """
        later = self.clusters[key].lease_ends + timedelta(seconds=max(0, seconds - 3600))
        self.clusters[key] = self.clusters[key].model_copy(update={"lease_ends": later})
        return 200, self.clusters[key].model_dump_json().encode()

    def _share(self, method: str, key: str, user: str) -> Answer:
        found = self.clusters[key]
        shares_with = tuple(other for other in found.spec.shares_with if other != user) + (
            (user,) if method == "PUT" else ()
        )
        self.clusters[key] = found.model_copy(
            update={"spec": found.spec.model_copy(update={"shares_with": shares_with})}
        )
        return 200, self.clusters[key].model_dump_json().encode()

    def _running_keys(self) -> list[str]:
        return [key for key, cluster in self.clusters.items() if cluster.state not in ENDED_STATES]

    def _network_keys(self, key: str) -> list[str]:
        members = [member for member in self._running_keys() if self.clusters[member].spec.joins == key]
        return self.networks.get(key, [key, *members] if key in self._running_keys() else [])

    def _choose_subnets(self, spec: ClusterSpec) -> ClusterSpec:
        """Return the spec of a new cluster with its subnets.

        If ``is_old`` is true, choose no subnets, like the released version 0.2.0 of SBF.
        """
        if self.is_old or spec.joins or spec.subnets is not None or any(guest.addresses for guest in spec.guests):
            return spec
        return spec.model_copy(update={"subnets": ("10.0.0.0/24",) if spec.guests else None})

    def _cluster(self, method: str, key: str, body: bytes, *, waits: bool) -> Answer:
        if method == "PUT":
            refused = self.refused.get(key, self.refuses)
            if refused:
                return _problem(*refused)
            self.requests.append(ClusterRequest.model_validate_json(body))
            self.clusters[key] = view(key, self._choose_subnets(self.requests[-1].spec), ClusterState.CONFIGURING)
            if key in self.mute:
                return _problem(503, "service-unreachable", "the cluster was created, but the answer was lost")
        if key not in self.clusters:
            return _problem(404, "not-found", f"cluster {key} is not known")
        found = self.clusters[key]
        if method == "DELETE":
            found = view(key, found.spec, ClusterState.DRAINING, found.version + 1)
        elif waits and not self.stuck and found.state in self.next:
            found = view(key, found.spec, self.next[found.state], found.version + 1)
        self.clusters[key] = found
        return 200, found.model_dump_json().encode()


def view(key: str, spec: ClusterSpec, state: ClusterState, version: int = 1) -> ClusterView:
    """Return the view of a cluster in ``state``, with placements on a switch and a host of site brno."""
    trouble = "it does not answer" if state in {ClusterState.FAILING, ClusterState.FAILED} else None
    parts = [("brno-sw", "switch"), ("brno-h1", "host")]
    placements = [
        PlacementView.model_validate({"element": name, "kind": kind, "site": "brno", "progress": PROGRESS[state]})
        for name, kind in parts
    ]
    return ClusterView.model_validate(
        {
            "key": key,
            "id": "4c1f",
            "attempt": 0,
            "version": version,
            "state": state,
            "reason": f"brno-sw: {trouble}" if trouble else None,
            "vlans": {"brno": 100, "praha": 100},
            "lease_ends": LEASE_ENDS,
            "spec": spec,
            "network": spec.joins,
            "placements": placements,
        }
    )


def _json(value: object) -> Answer:
    return 200, json.dumps(value).encode()


def _problem(status: int, slug: str, detail: str) -> Answer:
    body = {"type": f"urn:virtcloud:problem:{slug}", "title": slug, "status": status, "detail": detail}
    return status, json.dumps(body).encode()
