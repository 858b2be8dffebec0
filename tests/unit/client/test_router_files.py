from datetime import UTC, datetime

import pytest

from virtcloud.client.router_files import PortForward, find_targets, parse_forwards, render_settings
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import Peer
from virtcloud.model.values import Address, ClusterKey, Name, UserName
from virtcloud.model.vpn import Fingerprint, NewVpnProfile

PROFILE = NewVpnProfile(
    id="p1",
    cluster=ClusterKey("demo"),
    user=UserName("alice"),
    device=Name("router"),
    fingerprint=Fingerprint("0" * 64),
    addresses=(Address("10.0.0.246/24"), Address("fd00::77/64")),
    gateways=(Name("brno-gw1"),),
    created_at=datetime(2026, 11, 23, tzinfo=UTC),
    created_by="alice",
    expires_at=datetime(2026, 11, 24, tzinfo=UTC),
    lease_ends=datetime(2026, 11, 24, tzinfo=UTC),
    router=True,
    authority="",
    certificate="",
    remotes=(),
)
PEERS = (
    Peer(name=Name("g1"), cluster=ClusterKey("demo"), addresses=(Address("10.0.0.1/24"), Address("fd00::1/64"))),
    Peer(name=Name("g1"), cluster=ClusterKey("member"), addresses=(Address("10.0.0.9/24"),)),
    Peer(name=Name("bare"), cluster=ClusterKey("demo")),
)


def test_a_forward_leads_to_all_addresses_of_its_guest() -> None:
    forwards = parse_forwards(["8080:g1:80", "udp/53:g1:5353"])
    text = render_settings(PROFILE, "router.ovpn", forwards, find_targets(forwards, PEERS), ["192.168.1.0/24"])
    lines = text.splitlines()
    assert "SUBNETS='10.0.0.0/24 fd00::/64'" in lines
    start = lines.index("FORWARDS='") + 1
    assert lines[start : lines.index("'")] == [
        "tcp 8080 10.0.0.1 80 g1",
        "tcp 8080 fd00::1 80 g1",
        "udp 53 10.0.0.1 5353 g1",
        "udp 53 fd00::1 5353 g1",
    ]
    assert "REACHABLE='192.168.1.0/24'" in lines


@pytest.mark.parametrize(
    "text", ["8080", "8080:g1", "0:g1:80", "8080:g1:70000", "icmp/1:g1:1", "80:$(id):80", "80:g1:"]
)
def test_a_malformed_forward_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"expected .*PORT:GUEST:PORT"):
        PortForward.parse(text)


def test_two_forwards_of_one_port_are_refused() -> None:
    with pytest.raises(BadInput, match="got tcp port 80 for guests g1 and g2"):
        parse_forwards(["80:g1:80", "80:g2:80"])


def test_one_port_can_be_forwarded_for_tcp_and_udp() -> None:
    assert len(parse_forwards(["53:g1:53", "udp/53:g1:53"])) == 2


@pytest.mark.parametrize("guest", ["g2", "bare"])
def test_a_forward_to_a_guest_without_address_names_the_others(guest: str) -> None:
    with pytest.raises(BadInput, match=f"got {guest}; guests with addresses: g1$"):
        find_targets(parse_forwards([f"80:{guest}:80"]), PEERS)
