"""Tests of the control of VPN devices, with fake OpenVPN servers in memory."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from support.gateways.fake_openvpn import Device, FakeOpenvpn
from support.gateways.simulated_gateway import SimulatedGateway
from support.gateways.vpn_documents import make_server

from virtcloud.agent.gateway.device_control import STATUS_S
from virtcloud.agent.gateway.openvpn_config import DEVICE_WAITS_S
from virtcloud.model.vpn import VpnGrant, VpnProtocol
from virtcloud.model.wanted import HostWanted, Segment

DEVICES = Device("p1", "11" * 32), Device("p2", "22" * 32)


def make_segment(gateway: SimulatedGateway) -> Segment:
    grants = [
        VpnGrant.model_validate(
            {
                "profile": device.profile,
                "cluster": "c1",
                "user": "alice",
                "device": "laptop",
                "fingerprint": device.fingerprint,
                "expires_at": gateway.now + timedelta(hours=1),
            }
        )
        for device in DEVICES
    ]
    return Segment.model_validate({"id": "c1", "key": "demo", "vlan": 100, "port": "eth0", "grants": grants})


@pytest.fixture
def gateway() -> Iterator[SimulatedGateway]:
    """A gateway with a server for UDP. Both devices are connected, but only the connection of the first is recorded."""
    with closing(SimulatedGateway()) as made:
        server = make_server(ports={VpnProtocol.UDP: 1194})
        made.start_agent()
        segments = (make_segment(made),)
        made.vpn.receive(HostWanted(segments=segments, vpn=server), segments)
        made.vpn.ensure_server(VpnProtocol.UDP, server)
        for number, device in enumerate(DEVICES):
            made.disk_is_full = number > 0
            made.servers[0].connect(device, made.uptime)
            made.run_threads()
        made.disk_is_full = False
        yield made


def test_an_unrecorded_connection_has_ended_after_the_takeover(gateway: SimulatedGateway) -> None:
    assert [one.vlan for one in gateway.servers[0].clients.values()] == [100, 100]
    gateway.end_agent()
    gateway.start_agent()
    assert [one.device.profile for one in gateway.servers[0].clients.values()] == ["p1"]
    assert [one.profile for one in gateway.vpn.connections] == ["p1"]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that OpenVPN receives, without their texts."""
    received, read = list[str](), FakeOpenvpn.read_command

    def record(server: FakeOpenvpn, command: str, now: float) -> None:
        received.append(command.partition(' "')[0])
        read(server, command, now)

    monkeypatch.setattr(FakeOpenvpn, "read_command", record)
    return received


def test_a_recorded_connection_with_the_same_name_gets_a_notice(gateway: SimulatedGateway, commands: list[str]) -> None:
    """OpenVPN's command ``kill`` closes all connections with one common name. Each connection first gets a notice."""
    gateway.end_agent()
    gateway.servers[0].connect(DEVICES[0], gateway.uptime)
    commands.clear()
    gateway.start_agent()
    assert commands[1:4] == ["client-kill 0", "client-kill 1", "client-kill 2"]
    assert (gateway.servers[0].clients, gateway.vpn.connections) == ({}, ())


def test_connections_end_only_after_openvpn_has_answered_the_notices(
    gateway: SimulatedGateway, commands: list[str]
) -> None:
    gateway.end_agent()
    commands.clear()
    gateway.start_agent()
    assert commands[:5] == ["status 3", "client-kill 1", "status 3", "kill p2", "status 3"]


def test_a_device_is_reported_with_its_present_address(gateway: SimulatedGateway) -> None:
    """OpenVPN accepts packets of a connection from another address, for example after a change of Wi-Fi."""
    gateway.servers[0].float_device(0, "192.0.2.2")
    gateway.sleep(STATUS_S)
    gateway.run_threads()
    assert [one.remote for one in gateway.vpn.connections] == ["192.0.2.2:5000", "192.0.2.1:5000"]


def test_a_restarted_agent_without_a_document_renews_keys(gateway: SimulatedGateway, commands: list[str]) -> None:
    gateway.end_agent()
    gateway.start_agent()
    commands.clear()
    gateway.servers[0].renew_keys(0, gateway.uptime)
    gateway.run_threads()
    assert [one for one in commands if one.startswith("client-auth")] == ["client-auth-nt 0 1"]


def test_a_restarted_agent_without_a_document_admits_no_device(gateway: SimulatedGateway, commands: list[str]) -> None:
    gateway.end_agent()
    gateway.start_agent()
    commands.clear()
    gateway.servers[0].connect(DEVICES[1], gateway.uptime)
    gateway.run_threads(2)
    assert [one for one in commands if one.startswith(("client-auth", "client-deny"))] == []


def test_a_restarted_agent_renews_no_keys_after_the_lease(gateway: SimulatedGateway, commands: list[str]) -> None:
    gateway.end_agent()
    gateway.start_agent()
    commands.clear()
    gateway.now += timedelta(hours=1)
    gateway.servers[0].renew_keys(0, gateway.uptime)
    gateway.run_threads()
    assert [one for one in commands if one.startswith("client-auth")] == []


@pytest.mark.parametrize("renewals", [0, 2])
def test_a_renewal_that_no_agent_received_is_permitted(gateway: SimulatedGateway, renewals: int) -> None:
    for _ in range(renewals):
        gateway.servers[0].renew_keys(0, gateway.uptime)
        gateway.run_threads()
    gateway.end_agent()
    gateway.servers[0].renew_keys(0, gateway.uptime)
    gateway.start_agent()
    assert gateway.servers[0].clients[0].is_permitted


def test_no_lost_renewal_is_permitted_after_the_lease(gateway: SimulatedGateway, commands: list[str]) -> None:
    gateway.end_agent()
    gateway.servers[0].renew_keys(0, gateway.uptime)
    gateway.now += timedelta(hours=1)
    gateway.start_agent()
    assert [one for one in commands if one.startswith("client-auth")] == []


def test_renewed_keys_are_reported_to_nobody(gateway: SimulatedGateway) -> None:
    """SBF stores the connections. A renewal changes no connection."""
    reports = list[None]()
    gateway.vpn.changed = lambda: reports.append(None)
    gateway.servers[0].renew_keys(0, gateway.uptime)
    gateway.run_threads()
    assert (gateway.servers[0].clients[0].is_permitted, reports) == (True, [])


def test_a_restarted_agent_knows_an_extended_lease(gateway: SimulatedGateway) -> None:
    gateway.now += timedelta(minutes=30)
    segments = (make_segment(gateway),)
    gateway.vpn.receive(HostWanted(segments=segments, vpn=make_server(ports={VpnProtocol.UDP: 1194})), segments)
    gateway.run_threads()
    gateway.end_agent()
    gateway.now += timedelta(minutes=45)
    gateway.start_agent()
    gateway.run_threads()
    assert gateway.servers[0].clients[0].ends_at is None


@pytest.mark.parametrize("protocols", [(VpnProtocol.UDP, VpnProtocol.TCP), (VpnProtocol.TCP, VpnProtocol.UDP)])
def test_an_abandoned_request_ends_no_later_connection(protocols: tuple[VpnProtocol, ...]) -> None:
    """A device waits for a minute. OpenVPN waits longer, and does not notice that the device has given up."""
    with closing(SimulatedGateway()) as gateway:
        server = make_server(ports={VpnProtocol.UDP: 1194, VpnProtocol.TCP: 443})
        gateway.start_agent()
        for protocol in protocols:  # the order of the decisions about both connections
            gateway.vpn.ensure_server(protocol, server)
        abandoned, connected = (gateway.servers[protocols.index(protocol)] for protocol in server.ports)
        abandoned.connect(DEVICES[0], gateway.uptime)
        gateway.run_threads()
        gateway.pass_time(DEVICE_WAITS_S)
        connected.connect(DEVICES[0], gateway.uptime)
        segments = (make_segment(gateway),)
        gateway.run_threads()
        gateway.vpn.receive(HostWanted(segments=segments, vpn=server), segments)
        gateway.run_threads(4)
        assert [(one.vlan, one.ends_at) for one in connected.clients.values()] == [(100, None)]
        assert [one.protocol for one in gateway.vpn.connections] == [VpnProtocol.TCP]
