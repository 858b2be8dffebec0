"""Tests of transports: the keys that each kind requires, the service IDs of clusters, and the MTU."""

import pytest

from virtcloud.model.errors import BadDocument
from virtcloud.model.transport import ServiceRange, Transport
from virtcloud.model.yaml_document import read_document


def transport(keys: str) -> Transport:
    return read_document(f"{{name: core, {keys}}}", "core.yaml", Transport)


def refusal(keys: str) -> str:
    with pytest.raises(BadDocument) as caught:
        transport(keys)
    return str(caught.value).removeprefix("core.yaml:1: ")


@pytest.mark.parametrize(
    ("keys", "services", "shared", "on_edges", "translates"),
    [
        ("kind: direct", [], None, False, False),
        ("kind: qinq, s_tag: 2000", [], 2000, False, False),
        ("kind: qinq, s_tags: 2000-2002", [2000, 2001, 2002], None, True, True),
        ("kind: vpls, vpn_id: 7, asn: 65000", [], 7, True, False),
        ("kind: vpls, vpn_ids: 7-8, asn: 65000", [7, 8], None, True, True),
        ("kind: evpn, vnis: 10100-10100, asn: 65000", [10100], None, True, True),
    ],
)
def test_the_keys_determine_shared_and_single_services(
    keys: str, services: list[int], shared: int | None, on_edges: bool, translates: bool
) -> None:
    parsed = transport(keys)
    assert (list(parsed.services), parsed.shared) == (services, shared)
    assert (parsed.on_edges, parsed.translates) == (on_edges, translates)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("kind: qinq", "transport core of kind qinq: expected s_tag or s_tags, got nothing"),
        (
            "kind: qinq, s_tag: 2, s_tags: 3-4",
            "transport core of kind qinq: expected s_tag or s_tags, got s_tag, s_tags",
        ),
        ("kind: evpn, vnis: 1-2", "transport core of kind evpn: expected asn and vnis, got vnis"),
        ("kind: direct, s_tag: 2", "transport core of kind direct: expected no further key, got s_tag"),
        ("kind: qinq, s_tags: 4000-4095", "s_tags: expected service IDs up to 4094, got 4000-4095"),
    ],
)
def test_a_transport_refuses_keys_that_its_kind_does_not_need(keys: str, message: str) -> None:
    assert refusal(keys).endswith(message)


def test_a_descending_range_is_refused() -> None:
    assert "the lower ID first, got '9-8'" in refusal("kind: evpn, asn: 1, vnis: 9-8")


def test_a_range_contains_its_first_and_last_id() -> None:
    assert list(ServiceRange("10-12").service_ids) == [10, 11, 12]


@pytest.mark.parametrize(
    ("keys", "mtu"),
    [
        ("kind: direct", None),
        ("kind: direct, mtu: 1500", 1500),
        ("kind: qinq, s_tag: 2000, mtu: 1500", 1496),
        ("kind: qinq, s_tags: 2000-2002, mtu: 1500", 1500),
        ("kind: vpls, vpn_id: 7, asn: 65000, mtu: 1500", 1470),
        ("kind: vpls, vpn_ids: 7-8, asn: 65000, mtu: 1500", 1474),
        ("kind: evpn, vnis: 10100-10100, asn: 65000, mtu: 1500", 1450),
    ],
)
def test_a_clusters_mtu_is_what_the_encapsulation_leaves(keys: str, mtu: int | None) -> None:
    assert transport(keys).cluster_mtu == mtu


def test_an_mtu_too_small_for_ipv6_is_refused() -> None:
    expected = "expected at least 1280 bytes for a cluster's packets (IPv6, RFC 8200), got 1250 with mtu 1300"
    assert expected in refusal("kind: evpn, asn: 1, vnis: 8-9, mtu: 1300")
