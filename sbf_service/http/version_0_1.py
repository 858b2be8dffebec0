"""Answers to clients of version 0.1. Pure.

These clients reject a document with an unknown key, and a problem document (RFC 9457) with an unknown type. Therefore
SBF removes keys that version 0.1 does not have, and replaces an unknown type by the type of the error's nearest base
class in version 0.1. The tables were recorded from the API of version 0.1.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sbf_service.http.problems import URN
from virtcloud.model.errors import VirtcloudError

REQUIRES: Final = "requires"
"""The key under which a document lists the capabilities that an agent must have.

SBF does not remove a list with capabilities: an agent of version 0.1, which does not know the key, thus rejects the
document.
"""
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
"""For each operation of version 0.1, the kinds of documents that the operation may return, alone or in a list."""
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
"""The kinds of documents that the value of a key may contain, by the kind of the outer document and the key."""
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


def rewrite_answer(operation: str, answer: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return an operation's answer without the keys that version 0.1 does not have.

    An answer of an operation that version 0.1 does not have is unchanged.
    """
    return _remove_unknown_keys(answer, ANSWERS.get(operation, ()))


def rewrite_problem(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem document with a type that version 0.1 has."""
    slug = str(problem["type"]).removeprefix(URN)
    return {**problem, "type": URN + _KNOWN_TYPES.get(slug, slug)}


def _remove_unknown_keys(value: Any, documents: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return [_remove_unknown_keys(item, documents) for item in value]
    if not documents or not isinstance(value, dict):
        return value
    document = max(documents, key=lambda name: (len(KEYS[name] & value.keys()), -len(KEYS[name] - value.keys())))
    return {
        key: _remove_unknown_keys(inner, INNER.get((document, key), ()))
        for key, inner in value.items()
        if key in KEYS[document] or (key == REQUIRES and inner)
    }


def _find_known_types(kinds: Iterable[type[VirtcloudError]]) -> dict[str, str]:
    types = {}
    for kind in kinds:
        lineage = (base for base in kind.__mro__ if issubclass(base, VirtcloudError))
        types[kind.slug] = next((base.slug for base in lineage if base.slug in PROBLEMS), VirtcloudError.slug)
        types |= _find_known_types(kind.__subclasses__())
    return types


_KNOWN_TYPES = _find_known_types([VirtcloudError])
