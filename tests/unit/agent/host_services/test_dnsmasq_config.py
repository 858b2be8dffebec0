from typing import Any

import pytest

from virtcloud.agent.guests.seeds import NETWORK_CONFIG, render_nocloud
from virtcloud.agent.host_services.dnsmasq_config import list_assigned_addresses, render_dnsmasq
from virtcloud.model.wanted import Segment

PEERS = [
    {"name": "n1", "cluster": "demo", "addresses": ["10.0.0.1/24", "fd00::1/64"]},
    {"name": "n1", "cluster": "team.x", "addresses": ["10.0.0.9/24"]},
]


def guest(name: str, mac: str, *addresses: str, **keys: object) -> dict[str, Any]:
    sizes = {"image": "busybox", "memory_mb": 64, "cpus": 1}
    return {"name": name, "mac": f"02:00:00:00:00:{mac}", "addresses": addresses, **sizes, **keys}


def segment(*guests: dict[str, Any], **keys: object) -> Segment:
    attachment = {"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "members": {"c2": "team.x"}}
    return Segment.model_validate(
        {**attachment, "guests": guests, "peers": PEERS, "host_services": ["dhcp", "dns"], **keys}
    )


BOTH = guest("n1", "01", "10.0.0.1/24", "fd00::1/64")


def lines(wanted: Segment, *starts: str) -> list[str]:
    return [line for line in render_dnsmasq(wanted).config.splitlines() if line.startswith(starts)]


def test_a_guest_has_reserved_addresses_and_its_own_domain() -> None:
    member = guest("n1", "02", "10.0.0.9/24", cluster="c2")
    assert lines(segment(BOTH, member), "dhcp-host", "dhcp-option=tag") == [
        "dhcp-host=02:00:00:00:00:01,set:g0,10.0.0.1,[fd00::1]",
        "dhcp-option=tag:g0,12,n1",
        "dhcp-option=tag:g0,15,demo.internal",
        "dhcp-option=tag:g0,option6:24,demo.internal",
        "dhcp-host=02:00:00:00:00:02,set:g1,10.0.0.9",
        "dhcp-option=tag:g1,12,n1",
        "dhcp-option=tag:g1,15,team.x.internal",
        "dhcp-option=tag:g1,option6:24,team.x.internal",
    ]


def test_only_computers_with_a_reservation_get_an_answer() -> None:
    assert lines(segment(BOTH), "dhcp-ignore=", "dhcp-range") == [
        "dhcp-ignore=tag:!known",
        "dhcp-range=10.0.0.0,static,255.255.255.0,1h",
        "dhcp-range=fd00::,static,64,1h",
    ]


@pytest.mark.parametrize(("guests", "limits"), [(500, []), (501, ["dhcp-lease-max=1002"])])
def test_each_guest_can_have_a_lease_of_each_ip_version(guests: int, limits: list[str]) -> None:
    wanted = segment(
        *(
            guest(f"n{number}", "01", f"10.0.{number >> 8}.{number & 255}/16", f"fd00::{number:x}/64")
            for number in range(1, guests + 1)
        )
    )
    assert lines(wanted, "dhcp-lease-max") == limits


def test_guests_receive_a_dns_server_but_no_router() -> None:
    assert lines(segment(BOTH), "dhcp-option=option", "dhcp-option-force", "ra-param") == [
        "dhcp-option=option:router",
        "dhcp-option=option:dns-server,169.254.169.254",
        "dhcp-option=option6:dns-server,[fe80::]",
        "dhcp-option-force=option:classless-static-route,169.254.169.254/32,0.0.0.0",
        "ra-param=svc0,60,0",
    ]


def test_guests_receive_the_router_in_two_dhcp_options() -> None:
    """Clients that know option 121 ignore option 3 (RFC 3442)."""
    wanted = segment(BOTH, router_addresses=["10.0.0.250/24", "fd00::250/64"])
    assert lines(wanted, "dhcp-option=option:router", "dhcp-option-force", "ra-param") == [
        "dhcp-option=option:router,10.0.0.250",
        "dhcp-option-force=option:classless-static-route,169.254.169.254/32,0.0.0.0,0.0.0.0/0,10.0.0.250",
        "ra-param=svc0,60,0",
    ]


def test_guests_receive_the_clusters_mtu() -> None:
    assert lines(segment(BOTH, mtu=1450), "dhcp-option=option:mtu", "ra-param") == [
        "dhcp-option=option:mtu,1450",
        "ra-param=svc0,mtu:1450,60,0",
    ]


def test_dns_resolves_the_names_of_all_guests() -> None:
    assert render_dnsmasq(segment(BOTH)).names.splitlines() == [
        "10.0.0.1 n1.demo.internal",
        "fd00::1 n1.demo.internal",
        "10.0.0.9 n1.team.x.internal",
    ]


def test_a_network_without_dns_has_no_dns_port() -> None:
    found = lines(segment(BOTH, host_services=["dhcp"]), "port=", "dhcp-option=option:dns", "dhcp-option=option6:dns")
    assert found == ["port=0"]


def test_new_names_need_no_restart_but_new_guests_do() -> None:
    former = render_dnsmasq(segment(BOTH))
    other_names = render_dnsmasq(segment(BOTH, peers=PEERS[:1]))
    other_guests = render_dnsmasq(segment(BOTH, guest("n2", "02", "10.0.0.2/24")))
    assert (other_names.config_digest == former.config_digest, other_names.names_digest == former.names_digest) == (
        True,
        False,
    )
    assert other_guests.config_digest != former.config_digest


@pytest.mark.parametrize(
    ("addresses", "assigned"),
    [
        (["10.0.0.1/24", "10.0.0.2/24", "fd00::1/64", "fd00::2/64"], ["10.0.0.1/24", "fd00::1/64"]),
        (["fd00::1/48"], []),
        (["fd00::1/127"], []),
        (["fd00::/64"], []),
        ([], []),
    ],
    ids=["one of each version", "an IPv6 prefix too short", "too long", "the server's own address", "no address"],
)
def test_dhcp_assigns_one_address_of_each_version(addresses: list[str], assigned: list[str]) -> None:
    peers = [{"name": "n1", "cluster": "demo", "addresses": addresses}]
    wanted = segment(guest("n1", "01", *addresses), peers=peers)
    assert list(list_assigned_addresses(wanted, wanted.guests[0])) == assigned


def test_a_seed_requests_by_dhcp_what_dhcp_assigns() -> None:
    keys = {"user": "eva", "host_key": "k", "cluster_key": "k"}
    wanted = segment(guest("n1", "01", "10.0.0.1/24", "10.0.1.1/24", seed=keys))
    (found,) = wanted.guests
    assert found.seed
    config = render_nocloud(wanted, found, found.seed, {})[NETWORK_CONFIG]
    settings = [line.strip() for line in config.splitlines() if "dhcp" in line or "10.0" in line]
    assert settings == ["dhcp4: true", "dhcp6: false", "- 10.0.1.1/24"]
