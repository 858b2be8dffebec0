from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.gateways.vpn_documents import make_server

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.gateway.admission import DeviceSession
from virtcloud.agent.gateway.vpn_difference import (
    ObservedVpn,
    ObservedVpnPort,
    ObservedVpnServer,
    find_tap_faults,
    find_vpn_ports,
)
from virtcloud.agent.network.guest_filters import DevicePort, list_elements
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.steps import FilterGuests
from virtcloud.model.guest_spec import HOST_SERVICE_MAC
from virtcloud.model.vpn import VpnProtocol
from virtcloud.model.wanted import HostWanted, Segment

UDP, TCP = VpnProtocol.UDP, VpnProtocol.TCP
FINGERPRINT = "aa" * 32
GRANT = {
    "profile": "p1",
    "cluster": "c1",
    "user": "alice",
    "device": "laptop",
    "fingerprint": FINGERPRINT,
    "addresses": ("10.0.0.9/24",),
    "expires_at": "2026-01-01T00:00:00Z",
}
CONFIGS = {UDP: "u1", TCP: "t1"}
SERVERS = (ObservedVpnServer(UDP, "u1"), ObservedVpnServer(TCP, "t1"))
PORTS = (ObservedVpnPort("c1", 100, "vpn-udp.100"), ObservedVpnPort("c1", 100, "vpn-tcp.100"))
DEVICE_PORTS = (DevicePort("vpn-udp.100", ("02:00:00:00:00:01",)), DevicePort("vpn-tcp.100", ("02:00:00:00:00:01",)))
FILTERS = ObservedFilters(list_elements(DEVICE_PORTS))
COMPLETE = ObservedVpn(SERVERS, PORTS, CONFIGS)
SESSION = DeviceSession.model_validate(
    {
        "client": 7,
        "profile": "p1",
        "network": "c1",
        "vlan": 100,
        "fingerprint": FINGERPRINT,
        "addresses": ("10.0.0.9/24",),
        "common_name": "p1",
        "remote": "192.0.2.1:5",
        "connected_at": datetime(2026, 1, 1, tzinfo=UTC),
        "expires_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
)


def make_network(*grants: dict[str, Any], **changes: Any) -> Segment:
    keys = {"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "grants": grants}
    return Segment.model_validate(keys | {"guest_macs": ("02:00:00:00:00:01",)} | changes)


GRANTED = HostWanted(segments=(make_network(GRANT),), vpn=make_server())


def steps(
    wanted: HostWanted, vpn: ObservedVpn, filters: ObservedFilters = FILTERS, *segments: ObservedSegment
) -> list[str]:
    observed = ObservedHost(segments or (ObservedSegment("c1", 100, "eth0"),), filters=filters, vpn=vpn)
    return [str(step) for step in compute_difference(wanted, observed)]


def test_a_new_gateway_starts_its_servers_and_connects_the_network() -> None:
    observed = ObservedHost(filters=ObservedFilters(), vpn=ObservedVpn(configs=CONFIGS))
    assert [str(step) for step in compute_difference(GRANTED, observed)] == [
        "filter the frames of 0 guests and 2 VPN ports",
        "start the OpenVPN server at udp port 1194",
        "start the OpenVPN server at tcp port 443",
        "build VLAN 100 on eth0",
        "connect vpn-udp.100",
        "connect vpn-tcp.100",
    ]


def test_a_complete_gateway_is_left_alone() -> None:
    assert steps(GRANTED, COMPLETE) == []


def test_devices_cannot_answer_in_place_of_the_hosts_servers() -> None:
    network = make_network(GRANT, host_services=("dhcp",))
    observed = ObservedHost(filters=ObservedFilters(), vpn=COMPLETE)
    wanted = HostWanted(segments=(network,), vpn=make_server())
    (step,) = (step for step in compute_difference(wanted, observed) if isinstance(step, FilterGuests))
    expected = ("02:00:00:00:00:01", HOST_SERVICE_MAC)
    assert {(port.guest_macs, port.served) for port in step.ports if isinstance(port, DevicePort)} == {(expected, True)}


def test_a_network_without_grants_has_no_port() -> None:
    wanted = HostWanted(segments=(make_network(),), vpn=make_server())
    assert steps(wanted, COMPLETE, FILTERS) == [
        "disconnect vpn-udp.100",
        "disconnect vpn-tcp.100",
        "filter the frames of 0 guests",
    ]


def test_connections_end_before_their_vlan_passes_to_another_cluster() -> None:
    wanted = HostWanted(segments=(make_network(GRANT | {"cluster": "c2"}, id="c2"),), vpn=make_server())
    observed = replace(COMPLETE, servers=(replace(SERVERS[0], sessions=(SESSION,)), SERVERS[1]))
    assert steps(wanted, observed) == [
        "wait for the end of 1 VPN connection",
        "disconnect vpn-udp.100",
        "disconnect vpn-tcp.100",
        "remove VLAN 100",
        "build VLAN 100 on eth0",
        "connect vpn-udp.100",
        "connect vpn-tcp.100",
    ]


def test_the_end_of_a_lease_needs_no_step() -> None:
    """The lease of this test's session ended long ago."""
    observed = replace(COMPLETE, servers=(replace(SERVERS[0], sessions=(SESSION,)), SERVERS[1]))
    assert steps(GRANTED, observed) == []


def test_a_host_that_was_a_gateway_stops_its_servers() -> None:
    assert steps(HostWanted(), COMPLETE, ObservedFilters()) == [
        "disconnect vpn-udp.100",
        "disconnect vpn-tcp.100",
        "stop the OpenVPN server of udp",
        "stop the OpenVPN server of tcp",
        "remove VLAN 100",
    ]


def test_a_server_with_other_settings_starts_again() -> None:
    observed = replace(COMPLETE, configs={UDP: "u2", TCP: "t1"})
    assert steps(GRANTED, observed) == ["start the OpenVPN server at udp port 1194 (other settings)"]


def test_faults_of_a_server_and_of_a_port_are_corrected() -> None:
    server, port = replace(SERVERS[0], faults=("vpn-udp is down",)), replace(PORTS[1], faults=("vpn-tcp.100 is down",))
    assert steps(GRANTED, ObservedVpn((server, SERVERS[1]), (PORTS[0], port), CONFIGS)) == [
        "start the OpenVPN server at udp port 1194 (vpn-udp is down)",
        "connect vpn-tcp.100 (vpn-tcp.100 is down)",
    ]


def test_devices_of_clusters_with_checked_addresses_use_granted_addresses() -> None:
    wanted = HostWanted(segments=(make_network(GRANT, filters="addresses"),), vpn=make_server())
    checked = ObservedFilters(list_elements(port._replace(addresses=("10.0.0.9/24",)) for port in DEVICE_PORTS))
    assert steps(wanted, COMPLETE, checked) == []
    assert steps(wanted, COMPLETE) == ["filter the frames of 0 guests and 2 VPN ports"]


def test_the_filters_of_a_router_contain_the_networks_subnet() -> None:
    wanted = HostWanted(segments=(make_network(GRANT | {"router": True}, filters="addresses"),), vpn=make_server())
    ports = [port._replace(addresses=("10.0.0.9/24",), routed=("10.0.0.0/24",)) for port in DEVICE_PORTS]
    assert steps(wanted, COMPLETE, ObservedFilters(list_elements(ports))) == []


TAP = KernelInterface(5, "vpn-udp", "tun", "virtcloud-vpn", up=True, host_ip_disabled=True)
BRIDGE = KernelInterface(3, "br100", "bridge", "virtcloud:c1", mtu=9000)
PORT = KernelInterface(
    8, "vpn-udp.100", "vlan", "virtcloud:c1", 5, 3, 100, up=True, host_ip_disabled=True, hairpin=True
)


def test_a_port_is_found_by_its_name_and_alias() -> None:
    foreign = replace(PORT, alias=None)
    assert list(find_vpn_ports([TAP, BRIDGE, PORT])) == [ObservedVpnPort("c1", 100, "vpn-udp.100")]
    assert list(find_vpn_ports([TAP, BRIDGE, foreign])) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"master": None}, "vpn-udp.100 is not on br100"),
        ({"parent": 3}, "vpn-udp.100 is not VLAN 100 of its tap"),
        ({"vlan": 101}, "vpn-udp.100 is not VLAN 100 of its tap"),
        ({"mtu": 1400}, "vpn-udp.100 has MTU 1400, expected 1500"),
        ({"up": False}, "vpn-udp.100 is down"),
        ({"host_ip_disabled": False}, "the host's IP stack uses vpn-udp.100"),
        ({"hairpin": False}, "vpn-udp.100 is not in hairpin mode"),
    ],
)
def test_each_fault_of_a_port_is_found(changes: dict[str, Any], fault: str) -> None:
    (port,) = find_vpn_ports([TAP, BRIDGE, replace(PORT, **changes)])
    assert port.faults == (fault,)


@pytest.mark.parametrize(
    ("tap", "fault"),
    [
        (None, "vpn-udp is missing"),
        (replace(TAP, up=False), "vpn-udp is down"),
        (replace(TAP, master=3), "vpn-udp is on a bridge"),
        (replace(TAP, host_ip_disabled=False), "the host's IP stack uses vpn-udp"),
    ],
)
def test_each_fault_of_a_tap_is_found(tap: KernelInterface | None, fault: str) -> None:
    assert list(find_tap_faults(tap, "vpn-udp")) == [fault]
