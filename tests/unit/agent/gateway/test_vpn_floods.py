"""Tests of a gateway's OpenVPN servers during floods.

The floods are silent connections, copies of a client's first packet, and packets of senders that have no key for
tls-crypt-v2.
"""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support.gateways.openvpn_world import OPENVPN, TCP, UDP, GatewayWorld
from support.gateways.vpn_documents import PORTS, VpnAuthority

from virtcloud.agent.gateway import connection_limits, openvpn_config
from virtcloud.agent.gateway.connection_limits import ConnectionLimits
from virtcloud.agent.gateway.vpn_difference import LimitVpnConnections, ObservedVpn, find_server_starts
from virtcloud.agent.network.nftables import KernelTables
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import HostWanted

pytestmark = pytest.mark.skipif(not OPENVPN, reason="NOT TESTED: openvpn is not installed")

JUNK, SILENT = 5000, 120
CONNECT_S = 10.0


def read_memory_kb(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def send_junk() -> None:
    """Send packets that begin like the first packet of a client, and continue with random bytes.

    The first byte alternates between the opcodes of clients without and with tls-crypt-v2.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(JUNK):
            first = bytes((10 << 3 if number % 2 else 7 << 3,))
            sender.sendto(first + os.urandom(400), ("127.0.0.1", PORTS[UDP]))


@contextmanager
def silent_connections() -> Iterator[None]:
    """Open TCP connections, and close them at the end of the context.

    One third of the connections sends nothing, and one third sends random bytes. The last third sends the length of a
    packet, but not the packet.
    """
    with ExitStack() as stack:
        for number in range(SILENT):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", PORTS[TCP])))
            if number % 3:
                stream.sendall(os.urandom(200) if number % 3 == 1 else b"\x04\x00")
        yield


def connect_s(world: GatewayWorld, authority: VpnAuthority, name: str, protocol: Any) -> float:
    device = authority.make_device(name)
    world.grant(*(grant for segment in world.segments for grant in segment.grants), device.grant("10.0.0.200/24"))
    begin = time.monotonic()
    world.connect(device, protocol).wait_until_connected()
    return time.monotonic() - begin


def test_packets_without_a_key_delay_no_device(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    def work(world: GatewayWorld) -> object:
        before = read_memory_kb(world.pid())
        send_junk()
        return connect_s(world, authority, "laptop", UDP), read_memory_kb(world.pid()) - before

    seconds, grown_kb = in_world(work)
    assert seconds < CONNECT_S
    assert grown_kb < 4096


def test_silent_tcp_connections_delay_no_device(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    def work(world: GatewayWorld) -> object:
        with silent_connections():
            return connect_s(world, authority, "laptop", TCP)

    assert in_world(work, UDP, TCP) < CONNECT_S


@contextmanager
def silent_connections_of_two(number: int) -> Iterator[list[socket.socket]]:
    """Try ``number`` TCP connections from 127.0.0.2 and ``number`` from ::1. Yield the accepted connections."""
    with ExitStack() as stack:
        opened = []
        for target, source in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] * number:
            with suppress(ConnectionRefusedError):
                stream = socket.create_connection((target, PORTS[TCP]), source_address=(source, 0))
                opened.append(stack.enter_context(stream))
        yield opened


def test_one_source_cannot_fill_the_tcp_server(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, OpenVPN accepts 30 connections in total, and the packet filter accepts 10 from each source."""
    monkeypatch.setattr(connection_limits, "PER_SOURCE", 10)
    monkeypatch.setattr(openvpn_config, "_FIXED_OPTIONS", (*openvpn_config._FIXED_OPTIONS, "max-clients 30"))
    limits = ConnectionLimits()

    def work(world: GatewayWorld) -> object:
        limits.ensure(PORTS[TCP])
        with silent_connections_of_two(40) as opened:
            return len(opened), connect_s(world, authority, "laptop", TCP)

    number, seconds = in_world(work, UDP, TCP)
    assert (number, seconds < CONNECT_S) == (20, True)


def test_flushed_limits_are_set_again(in_world: Callable[..., Any]) -> None:
    limits = ConnectionLimits()

    def work(_world: GatewayWorld) -> object:
        limits.ensure(PORTS[TCP])
        before = limits.find_faults(PORTS[TCP])
        subprocess.run(["/usr/sbin/nft", "flush", "ruleset"], check=True)
        (step,) = find_server_starts(HostWanted(), ObservedVpn(limit_faults=limits.find_faults(PORTS[TCP])))
        limits.ensure(PORTS[TCP])
        return before, type(step), limits.find_faults(PORTS[TCP])

    assert in_world(work) == ((), LimitVpnConnections, ())


def test_a_gateway_without_tcp_server_has_no_limits(in_world: Callable[..., Any]) -> None:
    limits = ConnectionLimits()

    def work(_world: GatewayWorld) -> object:
        limits.ensure(PORTS[TCP])
        unwanted = limits.find_faults(None)
        limits.ensure(None)
        return unwanted, limits.find_faults(None)

    assert in_world(work) == (("no server needs the limits of connections",), ())


def test_limits_that_the_kernel_refuses_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise Refused("the kernel refused the packet filter")

    monkeypatch.setattr(KernelTables, "replace", refuse)
    limits = ConnectionLimits()
    limits.ensure(443)
    assert limits.find_faults(443) == ()


def test_limits_that_the_kernel_did_not_replace_are_removed(
    in_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise Refused("the kernel refused the packet filter: Cannot allocate memory")

    limits = ConnectionLimits()

    def work(_world: GatewayWorld) -> object:
        limits.ensure(443)
        with monkeypatch.context() as lacking:
            lacking.setattr(KernelTables, "replace", refuse)
            limits.ensure(8443)
        before = limits.find_faults(None)
        limits.ensure(None)
        return before, limits.find_faults(None)

    assert in_world(work) == (("no server needs the limits of connections",), ())


@contextmanager
def repeated(packet: bytes) -> Iterator[None]:
    stop = Event()

    def send() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(20):
                    sender.sendto(packet, ("127.0.0.1", PORTS[UDP]))
            time.sleep(0.002)

    thread = Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_repeated_first_packets_end_no_connection(in_world: Callable[..., Any], authority: VpnAuthority) -> None:

    def work(world: GatewayWorld) -> object:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as recorder:
            recorder.bind(("127.0.0.1", 0))
            recorder.settimeout(20)
            port = recorder.getsockname()[1]
            victim = authority.make_device("recorded")
            recording = world.connect(victim, port=port)
            packet = recorder.recv(2048)
            recording.close()
        connect_s(world, authority, "present", UDP)
        before = read_memory_kb(world.pid())
        with repeated(packet):
            time.sleep(3)
            seconds = connect_s(world, authority, "late", TCP)
        profiles = {connection.profile for connection in world.gateway.connections}
        return seconds, profiles, read_memory_kb(world.pid()) - before

    seconds, profiles, grown_kb = in_world(work, UDP, TCP)
    assert seconds < CONNECT_S
    assert profiles == {"present", "late"}
    assert grown_kb < 8192
