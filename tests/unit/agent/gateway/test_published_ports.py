"""Tests of published ports on the real kernel.

A publication forwards a port of the gateway to a port of a guest. Port 40000 leads to a guest of a cluster whose router
is the gateway. Port 40001 leads to a guest of an identical cluster without a router.
"""

import errno
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network

import pytest
from support.gateways.routing_world import (
    ADMINISTRATOR,
    GATEWAY,
    NSENTER,
    ROUTER,
    SERVER,
    Run,
    Surroundings,
    make_segment,
    run_gateway,
)

from virtcloud.agent.gateway import outside_routing
from virtcloud.agent.gateway.connection_table import remove_ended_connections
from virtcloud.agent.gateway.outside_links import list_published_translations
from virtcloud.agent.host_services.server_processes import PACKAGE_ROOT
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.gateway_access import PublishedPort
from virtcloud.model.values import Address
from virtcloud.model.wanted import Segment

LINK = "100.64.0.201"
"""The first cluster's namespace has this address on its link to the gateway's main namespace."""
ECHO = """
import socket
server = socket.create_server(("", 7070))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(data)
"""
SERVE6 = """
import socket
server = socket.create_server(("", 8086), family=socket.AF_INET6)
print("ready", flush=True)
connection, (address, *_) = server.accept()
connection.sendall(address.encode())
"""
HOLD = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
for limit in sys.stdin:
    connection.settimeout(float(limit))
    try:
        connection.sendall(b"hello\\n")
        print(connection.recv(100).decode().strip(), flush=True)
    except OSError:
        print("none", flush=True)
"""
ANSWER_S, SILENCE_S = 20.0, 0.6
"""Times in seconds. Wait at most ``ANSWER_S`` for an expected answer, and ``SILENCE_S`` for an answer that must not
arrive.
"""
ECHO_UDP = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 7070))
print("ready", flush=True)
while True:
    data, client = server.recvfrom(100)
    server.sendto(f"{sys.argv[1]} {client[0]}".encode(), client)
"""
HOLD_UDP = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], int(sys.argv[2])))
for limit in sys.stdin:
    client.settimeout(float(limit))
    try:
        client.send(b"hello\\n")
        print(client.recv(100).decode().strip(), flush=True)
    except OSError:
        print("none", flush=True)
"""
TALK_UDP = """
import socket, sys, time
guest = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
guest.bind(("", 7070))
print("ready", flush=True)
_, client = guest.recvfrom(100)
while True:
    guest.sendto(b"more", client)
    time.sleep(0.05)
"""
REMOVE = """
import json, sys
sys.path.append(sys.argv[2])
from ipaddress import ip_network
from virtcloud.agent.gateway.connection_table import Translation, remove_ended_connections
current = {Translation(*translation) for translation in json.loads(sys.argv[1])}
print(remove_ended_connections(current, [ip_network("100.64.0.0/19")]))
"""
FORGE = """
import socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
for flags in (0x10, 0x12, 0x18, 0x04, 0x11):
    head = struct.pack("!HHIIBBHHH", 8080, 6060, 1, 1, 0x50, flags, 1000, 0, 0)
    pseudo = socket.inet_aton(sys.argv[1]) + socket.inet_aton(sys.argv[2]) + struct.pack("!BBH", 0, 6, len(head))
    total = sum(struct.unpack("!%dH" % (len(pseudo + head) // 2), pseudo + head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    raw.sendto(head[:16] + struct.pack("!H", ~total & 0xFFFF) + head[18:], (sys.argv[2], 0))
"""
WATCH = """
import socket, struct
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
print("ready", flush=True)
raw.settimeout(0.7)
try:
    while struct.unpack("!H", raw.recv(2000)[22:24])[0] != 6060:
        pass
    print("seen")
except OSError:
    print("none")
"""


def publish(port: int, guest_port: int = 8080, lifetime_s: float = 3600, **changes: str) -> PublishedPort:
    return PublishedPort.model_validate(
        {
            "address": GATEWAY,
            "port": port,
            "interface": "outside0",
            "guest": "g1",
            "guest_address": "10.0.0.5",
            "guest_port": guest_port,
            "expires_at": datetime.now(UTC) + timedelta(seconds=lifetime_s),
        }
        | changes
    )


def segments(*published: PublishedPort) -> tuple[Segment, Segment]:
    first, second = make_segment(100), make_segment(200, ())
    return (
        first.model_copy(update={"publications": published}),
        second.model_copy(update={"publications": (publish(40001),)}),
    )


@pytest.fixture(scope="module")
def gateway(unshare: Callable[[], None]) -> Iterator[Run]:

    def prepare(made: Surroundings, stack: ExitStack) -> None:
        made.add_computer("other100", "10.0.0.6/24", ROUTER)
        made.ip("link set to-other100 master br100")
        for guest, port in (("guest100", 8080), ("guest100", 9090), ("guest200", 8080), ("other100", 8080)):
            stack.enter_context(made.serving(guest, port))
        made.segments = segments(publish(40000))

    with run_gateway(unshare, prepare) as run:
        yield run


@contextmanager
def running(world: Surroundings, computer: str, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [NSENTER, f"--net={world.folder / computer}", sys.executable, "-I", "-S", "-c", program, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as started:  # type: ignore[call-overload]  # noqa: S603 - programs above
        try:
            yield started
        finally:
            started.kill()


def exchange(client: subprocess.Popen[str], limit_s: float = ANSWER_S) -> str:
    """Send a line through a client's open connection. Return the answer, or ``none`` after ``limit_s`` seconds."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{limit_s}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


def await_ready(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"


def test_a_guest_behind_the_router_sees_the_clients_address(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(GATEWAY, 40000, "server", 5)) == SERVER


def test_a_guest_without_a_router_sees_the_gateways_address(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(GATEWAY, 40001, "server", 5)) == "10.0.0.246"


@pytest.mark.parametrize("port", [8080, 9090, 40002])
def test_other_ports_of_the_gateway_lead_to_no_guest(gateway: Run, port: int) -> None:
    assert gateway(lambda world: world.fetch(GATEWAY, port, "server")) == "none"


@pytest.mark.parametrize(
    ("address", "port"),
    [(LINK, 40000), (LINK, 8080), (LINK, 9090), ("10.0.0.5", 8080), ("10.0.0.5", 9090), ("10.0.0.6", 8080)],
)
def test_packets_routed_to_the_cluster_reach_no_guest(gateway: Run, address: str, port: int) -> None:

    def work(world: Surroundings) -> str:
        world.ip(f"route replace 10.0.0.0/24 via {LINK}")
        return world.fetch(address, port, "server")

    assert gateway(work) == "none"


@pytest.mark.parametrize(("address", "port"), [(LINK, 40000), (LINK, 9090), ("10.0.0.5", 9090), ("10.0.0.6", 8080)])
def test_the_main_namespaces_rules_alone_drop_forbidden_packets(gateway: Run, address: str, port: int) -> None:

    def work(world: Surroundings) -> str:
        world.ip(f"route replace 10.0.0.0/24 via {LINK}")
        for chain in ("input", "forward"):
            world.run("namespaces/c100", "nft", "flush", "chain", "inet", "virtcloud", chain)
            world.run("namespaces/c100", "nft", f"add chain inet virtcloud {chain} {{ policy accept; }}")
        found = world.fetch(address, port, "server")
        world.reconcile()
        return found

    assert gateway(work) == "none"


def test_the_management_network_reaches_no_published_guest(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(GATEWAY, 40000, "admin")) == "none"


def test_another_cluster_reaches_no_published_guest(gateway: Run) -> None:
    assert gateway(lambda world: [world.fetch(GATEWAY, 40001), world.fetch(LINK, 40001)]) == ["none"] * 2


@pytest.mark.parametrize("address", [SERVER, ADMINISTRATOR])
def test_a_gateway_forwards_no_forged_answers_of_a_guest(gateway: Run, address: str) -> None:
    """No connection is open. From its published port, the guest sends TCP packets that have the flags of answers."""
    target = {SERVER: "server", ADMINISTRATOR: "admin"}[address]

    def work(world: Surroundings) -> str:
        with running(world, target, WATCH) as watch:
            await_ready(watch)
            world.run("guest100", sys.executable, "-I", "-S", "-c", FORGE, "10.0.0.5", address)
            assert watch.stdout is not None
            return watch.stdout.readline().strip()

    assert gateway(work) == "none"


def test_open_connections_end_with_the_publication(gateway: Run) -> None:
    def work(world: Surroundings) -> list[str]:
        world.segments = segments(publish(40000), publish(40003, 7070))
        world.reconcile()
        with running(world, "guest100", ECHO) as echo:
            await_ready(echo)
            with running(world, "server", HOLD, GATEWAY, "40003") as client:
                before = exchange(client)
                world.segments = segments(publish(40000))
                world.reconcile()
                return [before, exchange(client, SILENCE_S)]

    assert gateway(work) == ["hello", "none"]


def test_a_port_that_moves_to_another_guest_keeps_no_connection(gateway: Run) -> None:
    def work(world: Surroundings) -> list[str]:
        world.segments = segments(publish(40000), publish(40003, 7070))
        world.reconcile()
        with running(world, "guest100", ECHO) as echo:
            await_ready(echo)
            with running(world, "server", HOLD, GATEWAY, "40003") as client:
                before = exchange(client)
                world.segments = segments(publish(40000), publish(40003, 9090))
                world.reconcile()
                return [before, exchange(client, SILENCE_S), world.fetch(GATEWAY, 40003, "server", 5)]

    assert gateway(work) == ["hello", "none", SERVER]


@pytest.fixture
def udp(gateway: Run) -> Callable[..., list[str]]:
    """Return a function that sends datagrams from one port of a client to the published port 40003.

    The function sends one datagram, changes the publications, sends two further datagrams, and returns the three
    answers. ``limits`` has the time limit of the first answer, and the time limit of each further answer. Each guest of
    the first cluster (10.0.0.5, 10.0.0.6) answers with its name and the sender's address.
    """

    def send(
        before: tuple[PublishedPort, ...],
        after: tuple[PublishedPort, ...],
        limits: tuple[float, float] = (ANSWER_S,) * 2,
    ) -> list[str]:
        def work(world: Surroundings) -> list[str]:
            world.segments = segments(*before)
            world.reconcile()
            guests = [running(world, name, ECHO_UDP, name) for name in ("guest100", "other100")]
            with (
                guests[0] as first,
                guests[1] as second,
                running(world, "server", HOLD_UDP, GATEWAY, "40003") as client,
            ):
                await_ready(first)
                await_ready(second)
                answer = exchange(client, limits[0])
                if after != before:
                    world.segments = segments(*after)
                    assert world.reconcile() == []
                return [answer, *(exchange(client, limits[1]) for _ in range(2))]

        return gateway(work)

    return send


SENT = 2000
UDP: PublishedPort = publish(40003, 7070, protocol="udp")


def test_a_tcp_publication_forwards_no_datagrams(udp: Callable[..., list[str]]) -> None:
    assert udp((publish(40003, 7070),), (UDP,), (SILENCE_S,) * 2)[0] == "none"


def test_tcp_and_udp_of_one_port_lead_to_different_guests(gateway: Run, udp: Callable[..., list[str]]) -> None:
    other = publish(40003, 8080, guest_address="10.0.0.6")
    assert udp((UDP, other), (UDP, other)) == [f"guest100 {SERVER}"] * 3
    assert gateway(lambda world: world.fetch(GATEWAY, 40003, "server", 5)) == SERVER


def test_an_open_udp_flow_ends_with_the_publication(udp: Callable[..., list[str]]) -> None:
    answers = udp((UDP, publish(40000)), (publish(40000),), (ANSWER_S, SILENCE_S))
    assert answers == [f"guest100 {SERVER}", "none", "none"]


def test_an_open_udp_flow_follows_its_port_to_another_guest(udp: Callable[..., list[str]]) -> None:
    """The client sends all datagrams from one port. So the kernel's connection table still has the former flow."""
    moved = UDP.model_copy(update={"guest_address": ip_address("10.0.0.6")})
    assert udp((UDP,), (moved,)) == [f"guest100 {SERVER}", f"other100 {SERVER}", f"other100 {SERVER}"]


def test_a_guest_cannot_continue_an_ended_udp_flow(gateway: Run) -> None:
    def work(world: Surroundings) -> list[str]:
        world.segments = segments(UDP)
        world.reconcile()
        with running(world, "guest100", TALK_UDP) as guest, running(world, "server", HOLD_UDP, GATEWAY, "40003") as one:
            await_ready(guest)
            before = exchange(one)
            world.segments = segments(publish(40000))
            world.reconcile()
            answers = [exchange(one, SILENCE_S)]
            while answers[-1] == "more" and len(answers) < SENT:
                answers.append(exchange(one, SILENCE_S))  # datagrams that the guest sent before the change
            return [before, answers[-1]]

    assert gateway(work) == ["more", "none"]


def test_ended_publications_leave_no_entry_in_the_connection_tables(
    gateway: Run, udp: Callable[..., list[str]]
) -> None:
    udp((UDP,), (publish(40000),), (ANSWER_S, SILENCE_S))

    def count(world: Surroundings) -> list[int]:
        current, links = list_published_translations(world.segments), [ip_network("100.64.0.0/19")]
        arguments = json.dumps(sorted(current)), str(PACKAGE_ROOT)
        inner = world.run("namespaces/c100", sys.executable, "-I", "-S", "-c", REMOVE, *arguments)
        return [remove_ended_connections(current, links), int(inner)]

    assert gateway(count) == [0, 0]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_failed_removal_of_connections_is_repeated(
    gateway: Run, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A restarted agent finds the correct packet filter, but does not know whether connections were removed."""
    removals: list[str] = []

    def fail_once(*_: object) -> int:
        removals.append("succeeded" if removals else "failed")
        if removals == ["failed"]:
            raise OSError(errno.EMFILE, "Too many open files")
        return 0

    def work(world: Surroundings) -> list[str]:
        world.segments = segments(UDP)
        world.reconcile()
        monkeypatch.setattr(outside_routing, "remove_ended_connections", fail_once)
        world.segments = segments(publish(40000))
        world.reconcile()
        if is_restarted:
            world.start_agent()
        for _ in range(2):
            world.outside.receive(world.segments)
        return world.reconcile()

    assert (gateway(work), removals) == ([], ["failed", "succeeded"])


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (OSError(errno.EPROTONOSUPPORT, "Protocol not supported"), "published_connections_not_removed"),
        (OSError(errno.EINVAL, "Invalid argument"), "published_connections_not_removed"),
        (KeyError(1), "internal_error"),
    ],
)
def test_a_removal_of_connections_that_always_fails_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, event: str
) -> None:
    """The kernel has no ctnetlink, or sends answers that the agent cannot parse."""

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(outside_routing, "remove_ended_connections", fail)
    with closing(NetlinkKernel()) as kernel:
        routing = outside_routing.OutsideRouting(kernel)
        for _ in range(3):
            routing.receive(segments(publish(40000)))
    assert [record.message.split()[0] for record in caplog.records] == [event]


def test_a_publication_ends_with_the_lease_without_an_agent(gateway: Run) -> None:
    def work(world: Surroundings) -> list[str]:
        with running(world, "guest100", ECHO) as echo:
            await_ready(echo)
            world.segments = segments(publish(40000), publish(40003, 7070))
            world.reconcile()
            with running(world, "server", HOLD, GATEWAY, "40003") as client:
                before = exchange(client)
                world.segments = segments(publish(40000), publish(40003, 7070, lifetime_s=3))
                world.reconcile()
                time.sleep(max(0, world.segments[0].publications[1].expires_at.timestamp() - time.time()) + 1)
                return [before, exchange(client, SILENCE_S), world.fetch(GATEWAY, 40003, "server")]

    assert gateway(work) == ["hello", "none", "none"]


def test_a_guest_is_published_with_ipv6(gateway: Run) -> None:
    def work(world: Surroundings) -> str:
        world.run("", "sysctl", "-w", "net.ipv6.conf.all.forwarding=1")
        world.ip("address add 2001:db8::1/64 dev outside0 nodad")
        world.ip("address add 2001:db8::10/64 dev eth0 nodad", computer="server")
        world.ip("address add fd00::5/64 dev eth0 nodad", computer="guest200")
        addresses = {"address": ip_address("2001:db8::1"), "guest_address": ip_address("fd00::5")}
        first, second = segments(publish(40000))
        changed = {
            "gateway_addresses": (*second.gateway_addresses, Address("fd00::f6/64")),
            "publications": (publish(40006, 8086).model_copy(update=addresses),),
        }
        world.segments = first, second.model_copy(update=changed)
        assert world.reconcile() == []
        with running(world, "guest200", SERVE6) as server:
            await_ready(server)
            return world.fetch("2001:db8::1", 40006, "server", 5)

    assert gateway(work) == "fd00::f6"


FAULTS = {
    "flush": ("", "nft flush ruleset"),
    "inner flush": ("namespaces/c100", "nft flush ruleset"),
    "translation": ("", "nft flush chain inet virtcloud_outside prerouting"),
    "inner translation": ("namespaces/c100", "nft flush chain inet virtcloud prerouting"),
    "link": ("", "ip link delete vu100"),
    "forwarding": ("", "sysctl -w net.ipv4.conf.outside0.forwarding=0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_drift_of_a_publication_is_corrected(gateway: Run, fault: str) -> None:
    def work(world: Surroundings) -> object:
        world.segments = segments(publish(40000))
        world.reconcile()
        world.run(FAULTS[fault][0], *FAULTS[fault][1].split())
        remaining = world.reconcile()
        return world.applied > 0, remaining, world.fetch(GATEWAY, 40000, "server", 5)

    assert gateway(work) == (True, [], SERVER)


def test_no_step_is_missing_after_a_router_loses_its_publications(gateway: Run) -> None:
    def work(world: Surroundings) -> list[str]:
        world.segments = (make_segment(100), make_segment(200))
        return world.reconcile()

    assert gateway(work) == []


def test_a_network_without_publications_leaves_no_link_or_table(gateway: Run) -> None:
    """The test must run last, because it changes the gateway that all tests of this file use."""

    def work(world: Surroundings) -> object:
        world.segments = (make_segment(100, ()), make_segment(200, ()))
        left = world.reconcile()
        found = [interface.name for interface in world.kernel.list_interfaces() if interface.name.startswith("vu")]
        return left, found, world.run("", "nft", "list", "tables", "inet"), world.fetch(GATEWAY, 40000, "server")

    assert gateway(work) == ([], [], "", "none")
