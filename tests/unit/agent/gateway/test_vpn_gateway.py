"""Tests of connections of VPN devices with a gateway's real OpenVPN servers, on the real kernel.

The kernel may lack 802.1Q interfaces, so these tests read the VLAN IDs of frames at the server's tap.
"""

import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.gateways.openvpn_world import LIMIT_S, OPENVPN, TCP, TEST_FRAME, UDP, GatewayWorld, StockClient
from support.gateways.vpn_documents import VpnAuthority
from support.processor_wait import Stopwatch

from virtcloud.agent.gateway.management_messages import NOTICE_S
from virtcloud.agent.gateway.openvpn_config import DEVICES, MAX_MACS
from virtcloud.model.vpn import VpnProtocol

pytestmark = pytest.mark.skipif(not OPENVPN, reason="NOT TESTED: openvpn is not installed")

NEW_KEYS = "Control Channel: "
"""The client prints this text after each handshake."""
SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID = 263, 8, 1 << 4  # linux/if_packet.h


def read_tag(world: GatewayWorld, client: StockClient, protocol: VpnProtocol = UDP) -> int | None:
    """Send a frame from a client. Return the frame's VLAN ID at the server's tap, or None if the frame is untagged."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind((DEVICES[protocol], 3))
        tap.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        tap.settimeout(LIMIT_S)
        client.send(TEST_FRAME)
        while True:
            data, controls, *_ = tap.recvmsg(2048, 64)
            if TEST_FRAME not in data[12:18]:
                continue
            status, *_, tag, _ = struct.unpack("IIIHHHH", controls[0][2])
            return tag & 0xFFF if status & TP_STATUS_VLAN_VALID else None


def test_a_device_with_a_grant_joins_its_vlan(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24", "fd00::c8/64"), vlan=100)
        client = world.connect(device)
        pushed = client.wait_until_connected()
        world.wait_for_profiles("laptop")
        return "ifconfig 10.0.0.200 255.255.255.0,ifconfig-ipv6 fd00::c8/64 ::" in pushed, read_tag(world, client)

    assert in_world(work) == (True, 100)


@pytest.mark.parametrize("protocol", [UDP, TCP])
def test_a_gateway_answers_from_the_address_that_the_device_uses(
    in_world: Callable[..., Any], authority: VpnAuthority, protocol: VpnProtocol
) -> None:
    """The kernel would send packets to this client from the address 127.0.0.1. The client refuses such packets."""
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device, protocol, address="127.0.0.2")
        client.wait_until_connected()
        return read_tag(world, client, protocol)

    assert in_world(work, protocol) == 100


@pytest.mark.parametrize("mtu", [1400, 9000])
def test_a_device_gets_the_mtu_of_its_network(in_world: Callable[..., Any], authority: VpnAuthority, mtu: int) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"), mtu=mtu)
        client = world.connect(device)
        client.wait_until_connected()
        return [one.mtu for one in world.kernel.list_interfaces() if one.name == client.device]

    assert in_world(work) == [min(mtu, 1500)]


def test_a_device_without_grant_is_refused_with_the_reason(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device, other = authority.make_device("laptop"), authority.make_device("other")

    def work(world: GatewayWorld) -> object:
        world.grant(other.grant("10.0.0.200/24"))
        return world.connect(device).wait_for("AUTH_FAILED,")

    assert "this profile gives no access" in in_world(work)


def test_a_removed_grant_ends_the_connection_within_a_second(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        world.wait_for_profiles("laptop")
        stopwatch = Stopwatch(world.pid())
        world.grant()
        world.wait_for_profiles()
        ended = stopwatch.seconds
        client.wait_for("Halt command was pushed by server ('this profile gives no access")
        return ended

    assert in_world(work) < 1


def test_a_connection_ends_with_the_lease_by_the_agents_clock(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24", ends_in=timedelta(hours=1)))
        client = world.connect(device)
        client.wait_until_connected()
        world.now = datetime.now(UTC) + timedelta(hours=2)
        world.wait_for_profiles()
        return client.wait_for("Halt command was pushed by server ('the lease of this cluster has ended')")

    assert in_world(work)


def test_a_busy_server_sends_the_notice_of_a_removed_grant(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    """The server's process is stopped (SIGSTOP) for longer than the agent waits for the notice's delivery."""
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        world.wait_for_profiles("laptop")
        os.kill(world.pid(), signal.SIGSTOP)
        world.grant()
        time.sleep(3 * NOTICE_S)
        os.kill(world.pid(), signal.SIGCONT)
        world.wait_for_profiles()
        return client.wait_for("Halt command was pushed by server ('this profile gives no access")

    assert in_world(work)


def test_an_expired_grant_admits_nobody(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24", ends_in=-timedelta(seconds=1)))
        return world.connect(device).wait_for("AUTH_FAILED,")

    assert "the lease of this cluster has ended" in in_world(work)


def test_the_same_profile_twice_ends_the_older_connection(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        older = world.connect(device)
        older.wait_until_connected()
        newer = world.connect(device, TCP)
        newer.wait_until_connected()
        older.wait_for("the same profile connected from another device")
        return older.process.wait(LIMIT_S), newer.process.poll()

    assert in_world(work, UDP, TCP) == (0, None)


def test_the_older_connection_ends_although_the_clock_was_set_back(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        older = world.connect(device)
        older.wait_until_connected()
        world.now = datetime.now(UTC) - timedelta(hours=1)
        newer = world.connect(device, TCP)
        newer.wait_until_connected()
        older.wait_for("the same profile connected from another device")
        return older.process.wait(LIMIT_S), newer.process.poll()

    assert in_world(work, UDP, TCP) == (0, None)


def test_a_new_agent_takes_over_the_connections(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        world.gateway.close()
        world.gateway = world.make_gateway()
        (server,) = world.gateway.read(world.kernel.list_interfaces()).servers
        world.grant(device.grant("10.0.0.200/24"))
        world.wait_for_profiles("laptop")
        taken_over = server.faults, [session.profile for session in server.sessions], client.log.read_text()
        world.grant()
        world.wait_for_profiles()
        return taken_over

    faults, profiles, output = in_world(work)
    assert (faults, profiles, "restarting" in output) == ((), ["laptop"], False)


def test_a_new_agent_permits_a_renewal_that_it_missed(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    """Without the permission, OpenVPN begins no further renewal of the keys, and later refuses the device."""
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device, options="reneg-sec 3 3")
        client.wait_for(NEW_KEYS, 2)
        world.gateway.close()
        client.wait_for(NEW_KEYS, 3)
        world.gateway = world.make_gateway()
        world.gateway.read(world.kernel.list_interfaces())
        return client.wait_for(NEW_KEYS, 5).count("Initialization Sequence Completed")

    assert in_world(work) == 1


def test_an_unrecorded_connection_starts_again_at_the_new_agent(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        world.gateway.close()
        (world.folder / "vpn/udp/sessions.json").unlink()
        world.gateway = world.make_gateway()
        world.gateway.read(world.kernel.list_interfaces())
        world.grant(device.grant("10.0.0.200/24"))
        client.wait_for("the gateway does not know this connection")
        world.wait_for_profiles("laptop")
        return client.log.read_text()

    assert "restarting" in in_world(work)


def test_a_device_waits_until_a_new_agent_has_its_grants(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        client = world.connect(device)
        client.wait_for("Peer Connection Initiated")
        before = "Initialization Sequence Completed" in client.log.read_text()
        world.grant(device.grant("10.0.0.200/24"))
        client.wait_until_connected()
        return before

    assert in_world(work) is False


def test_a_device_sends_no_tags_and_few_mac_addresses(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
            tap.bind((DEVICES[UDP], 3))
            tap.settimeout(LIMIT_S)
            client.send(b"\x81\x00\x00\x65" + TEST_FRAME, b"tagged".ljust(46))
            for number in range(2 * MAX_MACS):
                client.send(TEST_FRAME, b"flood".ljust(46), b"\x02\x00\x00\x00\x01" + bytes([number]))
            client.send(TEST_FRAME, b"last".ljust(46), b"\x02\x00\x00\x00\x01\x00")
            frames = [tap.recv(2048)]
            while b"last" not in frames[-1]:
                frames.append(tap.recv(2048))
        return any(b"tagged" in frame for frame in frames), sum(b"flood" in frame for frame in frames) <= MAX_MACS

    assert in_world(work) == (False, True)
