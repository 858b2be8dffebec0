"""Tests of a gateway that routes guests to external destinations. The agent, the packets and the faults are real.

All computers are network namespaces. Each of two clusters with identical addresses has a guest on an access port. A
fake SBF sends the wanted document.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.hosts.wanted_server import WantedServer, serving_wanted
from support.kernel.network_namespaces import NetworkNamespace, network_namespaces
from support.programs.name_server import NameServer, write_resolver_file

from virtcloud.model.wanted import HostWanted

pytest.importorskip("pyroute2")
pytest.importorskip("libvirt")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: network namespaces need root")

SERVER, SERVER6 = "192.0.2.10", "2001:db8:5::10"
GATEWAY, GATEWAY6 = "192.0.2.1", "2001:db8:5::1"
ADMINISTRATOR, ADMINISTRATOR6 = "198.51.100.10", "2001:db8:6::10"
ROUTER, ROUTER6 = "10.0.0.250", "fd00:1::fa"
PORT, OTHER_PORT = 8080, 9090
NAME = "web.example.org"
LIMIT_S = 20.0
SERVE = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    connection, (address, *_) = server.accept()
    connection.sendall(address.removeprefix("::ffff:").encode())
    connection.close()
"""
FETCH = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as connection:
        connection.settimeout(20)  # the kernel has accepted the connection; the server may be slow
        print(connection.recv(100).decode())
except OSError as error:
    print("none")
"""
HOLD = """
import socket, sys
server = socket.create_server(("", 8081))
print("ready", flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.sendall(data)
"""
TALK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 8081), 10)
print("ready", flush=True)
sys.stdin.readline()
connection.sendall(b"still open")
print(connection.recv(100).decode(), flush=True)
"""


OWN_MOUNTS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0 and libc.mount(None, b"/", None, ctypes.c_ulong(0x44000), None) == 0
source, target = sys.argv[1].encode(), os.path.realpath("/etc/resolv.conf").encode()
assert libc.mount(source, target, None, ctypes.c_ulong(0x1000), None) == 0
print("ready", flush=True)
time.sleep(3600)
"""
"""A program that creates a mount namespace with its own /etc/resolv.conf. The gateway's agents run in the namespace."""


def make_wanted(*vlans: int) -> HostWanted:
    networks = ["192.0.2.0/24", "198.51.100.0/24", "2001:db8:5::/64", "2001:db8:6::/64"]
    destination = {"name": "web", "networks": networks, "ports": [f"tcp/{PORT}", "tcp/8081"]}
    router = {
        "addresses": [f"{ROUTER}/24", f"{ROUTER6}/64"],
        "link": {"interface": "outside0"},
        "destinations": [destination],
    }
    common = {
        "untagged": True,
        "requires": ["gateway-addresses", "gateway-router"],
        "gateway_addresses": ["10.0.0.246/24", "fd00:1::f6/64"],
        "router": router,
    }
    segments = [
        {**common, "id": f"c{vlan}", "key": f"demo{vlan}", "vlan": vlan, "port": f"eth{vlan}"} for vlan in vlans
    ]
    return HostWanted.model_validate({"segments": segments})


def make_named() -> HostWanted:
    segments = make_wanted(100, 200).model_dump(mode="json")["segments"]
    for segment in segments:
        (destination,) = segment["router"].pop("destinations")
        segment["router"]["named_destinations"] = [destination | {"networks": [], "fqdns": [NAME]}]
        segment["requires"].append("gateway-fqdns")
    return HostWanted.model_validate({"segments": segments})


def make_published() -> HostWanted:
    common = {
        "interface": "outside0",
        "guest": "g1",
        "guest_port": PORT,
        "expires_at": datetime.now(UTC) + timedelta(hours=1),
    }
    published = [
        common | {"address": GATEWAY, "port": 40000, "guest_address": "10.0.0.5"},
        common | {"address": GATEWAY6, "port": 40001, "guest_address": "fd00:1::5"},
    ]
    first, second = make_wanted(100, 200).model_dump(mode="json")["segments"]
    requires = [*first["requires"], "gateway-publications"]
    return HostWanted.model_validate({"segments": [first | {"publications": published, "requires": requires}, second]})


class OutsideWorld:
    """Five computers: a gateway with a real agent, two guests, an external server and an administrator's computer."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.gateway, self.guest, self.other_guest, self.server, self.admin = stack.enter_context(network_namespaces(5))
        self.folder, self.stack = folder, stack
        self.dns = NameServer(folder, ("nsenter", f"--net=/proc/{self.gateway.pid}/ns/net"))
        stack.callback(self.dns.close)
        self.mounts = self._start(self.gateway, OWN_MOUNTS, str(write_resolver_file(folder))).pid
        self.sbf = WantedServer("brno-gw1")
        self.socket = folder / "sbf.sock"
        self.agent: subprocess.Popen[bytes] | None = None
        for vlan, guest in ((100, self.guest), (200, self.other_guest)):
            self.gateway.connect(f"eth{vlan}", guest, "eth0")
            guest.check(f"ip address add 10.0.0.5/24 dev eth0; ip route add default via {ROUTER}")
            guest.check(f"ip address add fd00:1::5/64 dev eth0 nodad; ip route add default via {ROUTER6}")
        self._add_outside("outside0", self.server, (GATEWAY, SERVER), (GATEWAY6, SERVER6))
        self._add_outside("mgmt0", self.admin, ("198.51.100.1", ADMINISTRATOR), ("2001:db8:6::1", ADMINISTRATOR6))
        self.gateway.check("sysctl -qw net.ipv6.conf.all.forwarding=1")
        self.gateway.check("for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done")
        for computer in (self.gateway, self.server, self.admin, self.guest):
            self._start(computer, SERVE, str(PORT))
        self._start(self.server, SERVE, str(OTHER_PORT))
        self._write_settings()

    def _add_outside(
        self, port: str, computer: NetworkNamespace, addresses: tuple[str, str], addresses6: tuple[str, str]
    ) -> None:
        self.gateway.connect(port, computer, "eth0")
        for namespace, device, end in ((self.gateway, port, 0), (computer, "eth0", 1)):
            namespace.check(f"ip address add {addresses[end]}/24 dev {device}")
            namespace.check(f"ip address add {addresses6[end]}/64 dev {device} nodad")
        computer.check(f"ip route add default via {addresses[0]}; ip route add default via {addresses6[0]}")

    def _start(self, computer: NetworkNamespace, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        argv = ["nsenter", f"--net=/proc/{computer.pid}/ns/net", sys.executable, "-I", "-S", "-c", program, *arguments]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - a program above
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def open_connection(self) -> subprocess.Popen[bytes]:
        """Start a program that opens a connection from the guest to the server.

        After a line on its standard input, the program sends data through this connection.
        """
        self._start(self.server, HOLD)
        return self._start(self.guest, TALK, SERVER)

    def _write_settings(self) -> None:
        paths = {key: str(self.folder / key) for key in ("state", "jobs", "namespaces")}
        settings = {"element": "brno-gw1", "sbf": f"unix://{self.socket}", **paths}
        settings["socket"] = str(self.folder / "agent.sock")
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        timing = ["[timing]", "check = 0.5", "retry_first = 0.2", "retry_most = 0.5"]
        (self.folder / "agent.toml").write_text("\n".join([*lines, *timing, ""]))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start_agent(self) -> None:
        former = self.log.count('"started"') if (self.folder / "log").exists() else 0
        argv = [sys.executable, "-m", "virtcloud.cli", "agent", "--config", str(self.folder / "agent.toml")]
        with (self.folder / "log").open("a") as log:
            enter = ["nsenter", f"--net=/proc/{self.gateway.pid}/ns/net", f"--mount=/proc/{self.mounts}/ns/mnt"]
            self.agent = subprocess.Popen([*enter, *argv], stderr=log)  # noqa: S603 - the agent
        wait_until(lambda: len(re.findall(r"\bstarted\b", self.log)) > former, self)

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.send_signal(signal.SIGKILL)
            self.agent.wait()
            self.agent = None

    @contextmanager
    def sbf_away(self) -> Iterator[None]:
        hidden = self.socket.with_suffix(".hidden")
        self.socket.rename(hidden)
        yield
        hidden.rename(self.socket)

    def fetch(
        self, address: str, port: int = PORT, computer: NetworkNamespace | None = None, limit_s: float = 0.4
    ) -> str:
        """Connect to a server. Return the client's address that the server saw, or ``none`` without a connection."""
        done = (computer or self.guest).run(sys.executable, "-I", "-S", "-c", FETCH, address, str(port), str(limit_s))
        return done.stdout.strip()

    def list_remains(self) -> list[str]:
        listed = self.gateway.check(f"nft list tables; ls {self.folder}/namespaces; ls /proc/sys/net/ipv4/conf").split()
        return [
            line for line in listed if line not in {"all", "default", "lo", "eth100", "eth200", "outside0", "mgmt0"}
        ]


def wait_until(reached: Callable[[], bool], world: OutsideWorld) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, world.log[-3000:]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def world() -> Iterator[OutsideWorld]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="outside-")))
        made = OutsideWorld(stack, folder)
        stack.callback(made.kill_agent)
        with serving_wanted(made.sbf, made.socket):
            made.start_agent()
            made.sbf.change(make_wanted(100, 200))
            made.sbf.wait_until_confirmed()
            yield made


@pytest.mark.parametrize(("address", "seen"), [(SERVER, GATEWAY), (SERVER6, GATEWAY6)])
def test_guests_of_identical_clusters_reach_the_destination(world: OutsideWorld, address: str, seen: str) -> None:
    """The gateway translates addresses, so the server sees the gateway's address."""
    guests = world.guest, world.other_guest
    assert [world.fetch(address, computer=guest, limit_s=5) for guest in guests] == [seen, seen]


@pytest.mark.parametrize(
    ("address", "port"),
    [
        *((address, OTHER_PORT) for address in (SERVER, SERVER6)),
        *((address, PORT) for address in (GATEWAY, GATEWAY6, "198.51.100.1", "2001:db8:6::1", ROUTER, ROUTER6)),
        *((address, PORT) for address in (ADMINISTRATOR, ADMINISTRATOR6)),
    ],
)
def test_a_guest_reaches_no_other_port_or_address(world: OutsideWorld, address: str, port: int) -> None:
    """The destination's networks include the management network. Guests reach no management address nevertheless."""
    assert world.fetch(address, port) == "none"


@pytest.mark.parametrize("address", ["100.64.0.201", "fd76:6372:7463:6c64::c9", "10.0.0.5", "fd00:1::5"])
def test_nobody_outside_reaches_a_guest_or_its_router(world: OutsideWorld, address: str) -> None:
    """``address`` is an address of the guest, or of the link between the gateway and the router's namespace."""
    assert world.fetch(address, computer=world.server) == "none"


def test_a_flushed_ruleset_is_restored(world: OutsideWorld) -> None:
    world.gateway.check("nft flush ruleset")
    wait_until(lambda: world.fetch(SERVER) == GATEWAY, world)
    assert [world.fetch(address) for address in (GATEWAY, ADMINISTRATOR)] == ["none", "none"]


def test_a_connection_survives_a_killed_and_restarted_agent(world: OutsideWorld) -> None:
    connection = world.open_connection()
    assert connection.stdin is not None
    assert connection.stdout is not None
    world.kill_agent()
    assert world.fetch(SERVER) == GATEWAY
    former, polls = len(world.log), world.sbf.polls
    world.start_agent()
    wait_until(lambda: world.sbf.polls > polls + 1, world)  # the agent has read the gateway
    connection.stdin.write(b"\n")
    connection.stdin.flush()
    assert connection.stdout.readline() == b"still open\n"
    assert "applied" not in world.log[former:]


def test_the_agent_reports_the_use_of_destinations(world: OutsideWorld) -> None:
    """The agent reports at its start and then once a minute. The counters survive a restart of the agent."""
    reports = [report for name, report in world.sbf.reports if name == "outside"]
    (use,) = (use for use in reports[-1]["uses"] if use["network"] == "c100")
    assert (use["destination"], use["connections"] > 1, use["sent_bytes"] > 0) == ("web", True, True)


def test_a_flushed_table_is_restored_while_sbf_is_away(world: OutsideWorld) -> None:
    former = len(world.log)
    with world.sbf_away():
        wait_until(lambda: "sbf_unreachable" in world.log[former:], world)
        world.gateway.check("nft flush ruleset")
        wait_until(lambda: "packet_filter_restored" in world.log[former:], world)
        assert [world.fetch(address) for address in (SERVER, GATEWAY, ADMINISTRATOR)] == [GATEWAY, "none", "none"]


def test_guests_reach_the_destination_while_sbf_is_away(world: OutsideWorld) -> None:
    """After the restart, the agent has no wanted state. The rules stay in the kernel."""
    former = len(world.log)
    with world.sbf_away():
        world.kill_agent()
        world.start_agent()
        wait_until(lambda: "sbf_unreachable" in world.log[former:], world)
        assert [world.fetch(address) for address in (SERVER, SERVER6, ADMINISTRATOR)] == [GATEWAY, GATEWAY6, "none"]


def test_guests_are_published_while_the_agent_is_dead(world: OutsideWorld) -> None:
    def fetch() -> list[str]:
        return [world.fetch(*address, computer=world.server) for address in ((GATEWAY, 40000), (GATEWAY6, 40001))]

    world.sbf.change(make_published())
    world.sbf.wait_until_confirmed()
    alive = fetch()
    world.kill_agent()
    dead = fetch()
    world.start_agent()
    world.sbf.change(make_wanted(100, 200))
    world.sbf.wait_until_confirmed()
    assert [alive, dead, fetch(), world.fetch(SERVER)] == [[SERVER, SERVER6]] * 2 + [["none", "none"], GATEWAY]


def test_guests_reach_a_name_with_ipv4_and_ipv6(world: OutsideWorld) -> None:
    world.server.check("ip address add 192.0.2.11/24 dev eth0")
    with world.dns.hanging():
        world.sbf.change(make_named())
        world.sbf.wait_until_confirmed()
        assert [world.fetch(address) for address in (SERVER, SERVER6)] == ["none", "none"]
    world.dns.answer({NAME: [SERVER, SERVER6, ADMINISTRATOR, GATEWAY, "127.0.0.1"]})
    wait_until(lambda: world.fetch(SERVER) == GATEWAY, world)
    found = [world.fetch(address) for address in (SERVER6, "192.0.2.11", ADMINISTRATOR, ADMINISTRATOR6)]
    assert [*found, world.fetch(SERVER, computer=world.other_guest)] == [GATEWAY6, "none", "none", "none", GATEWAY]


def test_a_connection_survives_a_new_answer_of_the_resolver(world: OutsideWorld) -> None:
    connection = world.open_connection()
    assert connection.stdin is not None
    assert connection.stdout is not None
    world.dns.answer({NAME: ["192.0.2.11"]})
    wait_until(lambda: world.fetch("192.0.2.11") == GATEWAY, world)
    connection.stdin.write(b"\n")
    connection.stdin.flush()
    assert connection.stdout.readline() == b"still open\n"


def test_a_restarted_agent_without_resolver_permits_the_last_addresses(world: OutsideWorld) -> None:
    with world.dns.hanging():
        world.kill_agent()
        dead = world.fetch(SERVER)
        former, polls = len(world.log), world.sbf.polls
        world.start_agent()
        wait_until(lambda: world.sbf.polls > polls + 1, world)
        assert [dead, world.fetch(SERVER)] == [GATEWAY, GATEWAY]
    assert "applied" not in world.log[former:]


def test_a_flushed_set_is_restored_while_no_resolver_answers(world: OutsideWorld) -> None:
    with world.dns.hanging():
        world.gateway.check("nft flush set inet virtcloud_outside fqdns4.web")
        wait_until(lambda: world.fetch(SERVER) == GATEWAY, world)


def test_the_agent_reports_the_names_of_destinations(world: OutsideWorld) -> None:
    def read_names() -> list[dict[str, Any]]:
        (*_, report) = [report for name, report in world.sbf.reports if name == "outside"]
        return [name for use in report["uses"] for name in use.get("names", ())]

    wait_until(lambda: len(read_names()) == 2, world)
    assert [(name["fqdn"], SERVER in name["addresses"]) for name in read_names()] == [(NAME, True)] * 2


def test_ended_clusters_leave_no_configuration(world: OutsideWorld) -> None:
    """The test removes all clusters. Therefore it must be the last of the module."""
    world.sbf.change(HostWanted())
    world.sbf.wait_until_confirmed()
    assert world.list_remains() == []
    assert world.fetch(SERVER) == "none"
