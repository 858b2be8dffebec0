"""What the documents and problems of version 0.1 hold: its client refuses every other key of an answer.

Answers for callers of version 0.1, whose client refuses a document with a key that it does not know.

That client names only its HTTP library (``User-Agent: python-httpx/…``, RFC 9110, 10.1.5); later ones name themselves
(``virtcloud/0.2.0``) and ignore unknown keys. For 0.1 every key that its documents do not have is left out, and a
problem of a type that it does not know gets the type of the nearest base class that it knows.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from virtcloud.model.errors import VirtcloudError

ANSWERS: dict[str, tuple[str, ...]] = {
    "check_element": ("ElementCheck",),
    "create_token": ("NewToken",),
    "delete_cluster": ("ClusterView",),
    "extend_lease": ("ClusterView",),
    "get_audit": ("AuditEntry",),
    "get_cluster": ("ClusterView",),
    "get_difference": ("ElementDifference",),
    "get_element": ("ElementView",),
    "get_health": ("Health",),
    "get_pool": ("Pool",),
    "get_preparation": ("SitePreparation",),
    "get_quota": ("QuotaView",),
    "get_readiness": ("Health",),
    "get_site": ("SiteView",),
    "get_topology": ("Topology",),
    "get_wanted": ("WantedDocument",),
    "list_clusters": ("ClusterView",),
    "list_elements": ("ElementView",),
    "list_quotas": ("QuotaView",),
    "list_sites": ("SiteView",),
    "list_tokens": ("TokenView",),
    "put_cluster": ("ClusterView", "ClusterPreview"),
    "put_pool": ("Pool",),
    "put_quota": ("QuotaView",),
    "put_topology": ("Topology",),
    "revoke_token": ("TokenView",),
    "say_clean": ("SiteView",),
    "verify_site": ("SiteCables",),
    "who_am_i": ("Identity",),
}
"""The document that each operation answers with, or several of which it is one; in a list or alone."""
KEYS: dict[str, frozenset[str]] = {
    "Attachment": frozenset(["bandwidth_mbit", "latency_ms", "port", "transport"]),
    "AuditEntry": frozenset(["at", "cluster", "cluster_id", "difference", "element", "id", "what", "who", "why"]),
    "CableView": frozenset(["a", "b", "found", "state"]),
    "Circuit": frozenset(["port", "service", "transport", "vlan"]),
    "ClusterPreview": frozenset(["created", "elements", "joined", "key", "vlans"]),
    "ClusterSpec": frozenset(
        ["deadline_s", "guests", "hosts", "joins", "lease_s", "name", "owner", "shares_with", "sites", "vlan"]
    ),
    "ClusterView": frozenset(
        [
            "attempt",
            "created_by",
            "id",
            "joined",
            "key",
            "lease_ends",
            "network",
            "placements",
            "quarantined",
            "reason",
            "spec",
            "state",
            "version",
            "vlans",
        ]
    ),
    "Edge": frozenset(
        ["address", "aggregates", "core_port", "credential", "keep_session", "loopback", "name", "platform", "ports"]
    ),
    "EdgeDifference": frozenset(["add", "clear", "remove"]),
    "ElementCheck": frozenset(["element", "mended"]),
    "ElementDifference": frozenset(["edge", "element", "host", "kind", "lines", "read_at", "site", "switch"]),
    "ElementView": frozenset(
        ["carried", "circuits", "confirmed_revision", "kind", "last_seen", "name", "site", "trouble", "wanted_revision"]
    ),
    "Gateway": frozenset(["aggregates", "name", "ports"]),
    "Guest": frozenset(["addresses", "cpus", "host", "image", "mac", "memory_mb", "name"]),
    "GuestWanted": frozenset(["addresses", "cluster", "cpus", "image", "mac", "memory_mb", "name"]),
    "Health": frozenset(["status"]),
    "Host": frozenset(["aggregates", "hypervisors", "name", "ports"]),
    "HostDifference": frozenset(["add", "remove"]),
    "HostWanted": frozenset(["segments"]),
    "Identity": frozenset(["name", "role", "sites", "token"]),
    "Joined": frozenset(["kind", "service", "transport"]),
    "Link": frozenset(["a", "access", "b", "bandwidth_mbit", "latency_ms"]),
    "NewToken": frozenset(
        ["created_at", "created_by", "expires_at", "id", "last_used_at", "name", "revoked_at", "role", "sites", "token"]
    ),
    "Part": frozenset(["port", "service", "transport", "vlan"]),
    "PlacementView": frozenset(["element", "kind", "progress", "site", "trouble"]),
    "Pool": frozenset(["vlans"]),
    "Quarantine": frozenset(["cluster", "cluster_id", "elements", "since", "vlan"]),
    "QuotaLimits": frozenset(["clusters", "lease_s", "sites"]),
    "QuotaView": frozenset(["clusters", "limits", "own", "user"]),
    "Segment": frozenset(["guests", "id", "key", "members", "port", "untagged", "vlan"]),
    "SegmentPlan": frozenset(["guests", "key", "port", "untagged", "vlan"]),
    "Sheet": frozenset(["device", "lines", "notes", "platform", "side", "to_fill"]),
    "Site": frozenset(["attachments", "edges", "gateways", "hosts", "name", "switches"]),
    "SiteCables": frozenset(["at", "cables", "site", "unread"]),
    "SitePreparation": frozenset(["sheets", "site"]),
    "SiteView": frozenset(["claimed", "free", "hosts", "name", "pool", "quarantine", "quarantined"]),
    "Switch": frozenset(["address", "aggregates", "credential", "keep_session", "name", "platform", "ports"]),
    "SwitchDifference": frozenset(["access", "add", "close", "create", "delete", "remove"]),
    "TokenView": frozenset(
        ["created_at", "created_by", "expires_at", "id", "last_used_at", "name", "revoked_at", "role", "sites"]
    ),
    "Topology": frozenset(["links", "name", "sites", "transports"]),
    "Transport": frozenset(["asn", "kind", "name", "s_tag", "s_tags", "vnis", "vpn_id", "vpn_ids"]),
    "WantedDocument": frozenset(["confirmed_revision", "element", "revision", "wanted"]),
}
"""The keys of each document."""
INNER: dict[tuple[str, str], tuple[str, ...]] = {
    ("AuditEntry", "difference"): ("SwitchDifference", "EdgeDifference", "HostDifference"),
    ("ClusterPreview", "elements"): ("ElementDifference",),
    ("ClusterPreview", "joined"): ("Joined",),
    ("ClusterSpec", "guests"): ("Guest",),
    ("ClusterView", "joined"): ("Joined",),
    ("ClusterView", "placements"): ("PlacementView",),
    ("ClusterView", "spec"): ("ClusterSpec",),
    ("EdgeDifference", "add"): ("Circuit",),
    ("EdgeDifference", "clear"): ("Part",),
    ("EdgeDifference", "remove"): ("Circuit",),
    ("ElementCheck", "element"): ("ElementView",),
    ("ElementCheck", "mended"): ("SwitchDifference", "EdgeDifference"),
    ("ElementDifference", "edge"): ("EdgeDifference",),
    ("ElementDifference", "host"): ("HostDifference",),
    ("ElementDifference", "switch"): ("SwitchDifference",),
    ("ElementView", "circuits"): ("Circuit",),
    ("HostDifference", "add"): ("SegmentPlan",),
    ("HostWanted", "segments"): ("Segment",),
    ("QuotaView", "limits"): ("QuotaLimits",),
    ("QuotaView", "own"): ("QuotaLimits",),
    ("Segment", "guests"): ("GuestWanted",),
    ("SegmentPlan", "guests"): ("Guest",),
    ("Site", "attachments"): ("Attachment",),
    ("Site", "edges"): ("Edge",),
    ("Site", "gateways"): ("Gateway",),
    ("Site", "hosts"): ("Host",),
    ("Site", "switches"): ("Switch",),
    ("SiteCables", "cables"): ("CableView",),
    ("SitePreparation", "sheets"): ("Sheet",),
    ("SiteView", "quarantine"): ("Quarantine",),
    ("Topology", "links"): ("Link",),
    ("Topology", "sites"): ("Site",),
    ("Topology", "transports"): ("Transport",),
    ("WantedDocument", "wanted"): ("HostWanted",),
}
"""The documents within a document, by its name and the key."""
PROBLEMS: frozenset[str] = frozenset(
    {
        "attempt-waits",
        "bad-document",
        "bad-input",
        "cluster-failed",
        "conflict",
        "database-unavailable",
        "element-error",
        "error",
        "forbidden",
        "gone",
        "guest-taken",
        "host-not-linked",
        "illegal-move",
        "name-taken",
        "no-such-host",
        "no-such-network",
        "no-vlan-free",
        "not-found",
        "other-spec",
        "quota-exceeded",
        "refused",
        "scheduler-silent",
        "service-unreachable",
        "timed-out",
        "too-many-requests",
        "unauthenticated",
        "unreachable",
        "unsafe",
        "vlan-not-in-pool",
    }
)
"""The names of its problems."""


CLIENT: Final = b"python-httpx/"
NEEDED: Final = "requires"
"""Never left out where it names anything: what an agent must understand is not to be ignored, but refused by 0.1."""
JSON, PROBLEM = "application/json", "application/problem+json"
URN: Final = "urn:virtcloud:problem:"


@dataclass(frozen=True, slots=True)
class Version01Middleware:
    """Stands around the application; answers to other callers pass as they are."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, and its answer back in the form of 0.1 where that is needed."""
        if scope["type"] == "http" and _is_version_0_1(scope):
            await self.app(scope, receive, _Rewritten(scope, send))
        else:
            await self.app(scope, receive, send)


def _is_version_0_1(scope: Scope) -> bool:
    return any(name == b"user-agent" and value.startswith(CLIENT) for name, value in scope["headers"])


class _Rewritten:
    """Collects an answer's body and sends it in the form of 0.1."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _media_type(message) in {JSON, PROBLEM}:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)
        else:
            await self._send(message)

    async def _finish(self, start: Message) -> None:
        body = self._in_its_form(start) if self._body else b""  # 204 has none
        if body:
            MutableHeaders(scope=start)["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    def _in_its_form(self, start: Message) -> bytes:
        said = json.loads(self._body)
        operation = str(getattr(self._scope.get("route"), "operation_id", None))
        made = rewrite_problem(said) if _media_type(start) == PROBLEM else rewrite_answer(operation, said)
        return json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode()


def _media_type(start: Message) -> str:
    return MutableHeaders(scope=start).get("content-type", "").partition(";")[0]


def rewrite_answer(operation: str, said: Any) -> Any:  # noqa: ANN401 - any JSON
    """PURE. Return an operation's answer as 0.1 knows it; an operation that 0.1 lacks answers unchanged."""
    return _known(said, ANSWERS.get(operation, ()))


def rewrite_problem(said: Mapping[str, Any]) -> dict[str, Any]:
    """PURE. Return a problem document with a type that 0.1 knows."""
    slug = str(said["type"]).removeprefix(URN)
    return {**said, "type": URN + _BASES.get(slug, slug)}


def _known(value: Any, documents: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return [_known(one, documents) for one in value]
    if not documents or not isinstance(value, dict):
        return value
    document = max(documents, key=lambda one: len(KEYS[one] & value.keys()))
    return {
        key: _known(inner, INNER.get((document, key), ()))
        for key, inner in value.items()
        if key in KEYS[document] or (key == NEEDED and inner)
    }


def _bases(kinds: Iterable[type[VirtcloudError]]) -> dict[str, str]:
    """Return for each type of problem the nearest that 0.1 knows: itself or one of its base classes."""
    found = {}
    for kind in kinds:
        lineage = (one for one in kind.__mro__ if issubclass(one, VirtcloudError))
        found[kind.slug] = next((one.slug for one in lineage if one.slug in PROBLEMS), VirtcloudError.slug)
        found |= _bases(kind.__subclasses__())
    return found


_BASES = _bases([VirtcloudError])
