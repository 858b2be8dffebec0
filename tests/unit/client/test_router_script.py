"""Tests of the script with which a user's computer becomes a cluster's router, with real packets in namespaces.

A veth pair replaces the VPN between a guest and the computer. The computer also has links to an outside network and to
a private network.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from support.kernel.network_namespaces import NetworkNamespace, network_namespaces

from virtcloud.client.router_files import read_script

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None, reason="NOT TESTED: the tests need root and nftables"
)

LIMIT_S = 5.0
BLOCKED_S = 0.3
SETTINGS = """\
CLUSTER=demo
PROFILE=
INTERFACE=vc-router
SUBNETS='10.0.0.0/24 fd00::/64'
FORWARDS='
tcp 8080 10.0.0.1 80 g1
tcp 8080 fd00::1 80 g1
udp 5353 10.0.0.1 53 g1
'
REACHABLE='192.168.1.53'
"""
GUEST, COMPUTER, OUTSIDE, PRIVATE, LISTED = "10.0.0.1", "198.51.100.1", "198.51.100.9", "192.168.1.9", "192.168.1.53"
GUEST6, COMPUTER6, OUTSIDE6 = "fd00::1", "2001:db8::1", "2001:db8::9"
SYSCTLS = "cd /proc/sys/net; grep . ipv4/ip_forward ipv?/conf/*/forwarding ipv?/conf/*/accept_r[ae]*"
NO_CLUSTER = {"INTERFACE=vc-router": "INTERFACE=vc-absent", "10.0.0.0/24 fd00::/64": "10.9.0.0/24"}
"""Replacements in router.conf. With the new values, no interface and no route belongs to the cluster."""
SLOW_OPENVPN = """\
#!/bin/sh
# Return before the background process has written its process ID into the file, as OpenVPN may do.
while [ $# -gt 0 ]; do
    case $1 in --log) log=$2 ;; --writepid) pid=$2 ;; esac
    shift
done
: >"$log"
: >"$pid"
(
    sleep 0.5
    read -r own _ </proc/self/stat
    echo "$own" >"$pid"
    echo 'Initialization Sequence Completed' >"$log"
    for _ in $(seq 300); do sleep 0.1; done
) >/dev/null 2>&1 &
"""


class RouterWorld:
    """A guest, the user's computer, and hosts in an outside and in a private network."""

    def __init__(self, namespaces: list[NetworkNamespace], folder: Path) -> None:
        self.guest, self.computer, self.outside, self.private = namespaces
        self.folder = folder / "router"
        self.state = folder / "state"
        self.environment = {"VIRTCLOUD_ROUTER_STATE": str(self.state)}
        self._connect()
        self._write_files(self.folder)

    def _connect(self) -> None:
        self.computer.connect("vc-router", self.guest, "eth0")
        self.computer.connect("out0", self.outside, "eth0")
        self.computer.connect("lan0", self.private, "eth0")
        self.computer.check("""
            ip addr add 10.0.0.254/24 dev vc-router; ip addr add fd00::fe/64 dev vc-router nodad
            ip addr add 198.51.100.1/24 dev out0; ip addr add 2001:db8::1/64 dev out0 nodad
            ip addr add 192.168.1.1/24 dev lan0
        """)
        self.guest.check("""
            ip addr add 10.0.0.1/24 dev eth0; ip addr add fd00::1/64 dev eth0 nodad
            ip route add default via 10.0.0.254; ip route add default via fd00::fe
        """)
        self.outside.check("""
            ip addr add 198.51.100.9/24 dev eth0; ip addr add 2001:db8::9/64 dev eth0 nodad
            ip route add 10.0.0.0/24 via 198.51.100.1; ip route add fd00::/64 via 2001:db8::1
            ip route add 192.168.1.0/24 via 198.51.100.1
        """)
        self.private.check("""
            ip addr add 192.168.1.9/24 dev eth0; ip addr add 192.168.1.53/24 dev eth0
            ip route add default via 192.168.1.1
        """)

    def _write_files(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "router.conf").write_text(SETTINGS)
        (folder / "router").write_text(read_script())
        (folder / "router").chmod(0o755)

    def change(self, changes: Mapping[str, str]) -> None:
        path = self.folder / "router.conf"
        for old, new in changes.items():
            path.write_text(path.read_text().replace(old, new))

    def router(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.computer.run(str(self.folder / "router"), command, env=self.environment | environment)

    def up(self) -> None:
        done = self.router("up")
        assert done.returncode == 0, done.stderr

    def snapshot(self) -> str:
        changed = self.computer.check(f"nft list ruleset; ip -brief link; {SYSCTLS}")
        return f"{changed}{sorted(self.state.parent.glob('state*'))}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterWorld]:
    """A world in which ``up`` has made the computer a router. Tests do not change this world."""
    with network_namespaces(4) as namespaces:
        world = RouterWorld(namespaces, tmp_path_factory.mktemp("running"))
        world.up()
        yield world


@pytest.fixture(scope="module")
def connected_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterWorld]:
    with network_namespaces(4) as namespaces:
        yield RouterWorld(namespaces, tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def world(connected_world: RouterWorld) -> Iterator[RouterWorld]:
    """A world in which the computer is no router. The fixture runs ``down`` after the test."""
    (connected_world.folder / "router.conf").write_text(SETTINGS)
    connected_world.computer.check("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
    yield connected_world
    if connected_world.state.exists():
        connected_world.router("down")


def listen(namespace: NetworkNamespace, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = namespace.call(lambda: socket.create_server((address, port), family=family))
    server.settimeout(LIMIT_S)
    return server


def connect(namespace: NetworkNamespace, address: str, port: int, limit_s: float = LIMIT_S) -> socket.socket:
    return namespace.call(lambda: socket.create_connection((address, port), timeout=limit_s))


def reaches(namespace: NetworkNamespace, address: str, port: int) -> bool:
    """Return whether a connection is accepted. A connection without an answer in time counts as refused."""
    try:
        connect(namespace, address, port, BLOCKED_S).close()
    except OSError:
        return False
    return True


def read_segment_size(server: socket.socket) -> int:
    accepted, _ = server.accept()
    with accepted:
        return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


@pytest.mark.parametrize(("address", "translated"), [(OUTSIDE, COMPUTER), (OUTSIDE6, COMPUTER6)])
def test_a_guest_reaches_the_outside_from_the_computers_address(
    running: RouterWorld, address: str, translated: str
) -> None:
    with listen(running.outside, address, 443) as server, connect(running.guest, address, 443):
        accepted, (source, *_) = server.accept()
        accepted.close()
    assert source == translated


@pytest.mark.parametrize(("address", "guest", "client"), [(COMPUTER, GUEST, OUTSIDE), (COMPUTER6, GUEST6, OUTSIDE6)])
def test_a_forwarded_port_leads_to_the_guest(running: RouterWorld, address: str, guest: str, client: str) -> None:
    with listen(running.guest, guest, 80) as server, connect(running.outside, address, 8080) as connection:
        accepted, (source, *_) = server.accept()
        with accepted:
            accepted.sendall(b"answer")
            assert connection.recv(6) == b"answer"
    assert source == client


def test_a_forwarded_udp_port_leads_to_the_guest(running: RouterWorld) -> None:
    server = running.guest.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    client = running.outside.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with closing(server), closing(client):
        server.bind((GUEST, 53))
        server.settimeout(LIMIT_S)
        client.sendto(b"question", (COMPUTER, 5353))
        assert server.recvfrom(16)[0] == b"question"


@pytest.mark.parametrize("address", [GUEST, GUEST6])
def test_nobody_outside_reaches_a_port_that_is_not_forwarded(running: RouterWorld, address: str) -> None:
    with listen(running.guest, address, 22):
        assert not reaches(running.outside, address, 22)


@pytest.mark.parametrize(("address", "reached"), [(PRIVATE, False), (LISTED, True)])
def test_guests_reach_only_listed_addresses_of_private_networks(
    running: RouterWorld, address: str, reached: bool
) -> None:
    with listen(running.private, address, 53):
        assert reaches(running.guest, address, 53) is reached


@pytest.mark.parametrize("address", ["10.0.0.254", COMPUTER, "fd00::fe", COMPUTER6])
def test_guests_reach_no_service_of_the_computer(running: RouterWorld, address: str) -> None:
    with listen(running.computer, address, 22):
        assert not reaches(running.guest, address, 22)


def test_a_guest_with_a_foreign_address_is_not_forwarded(running: RouterWorld) -> None:
    running.guest.check("ip addr add 203.0.113.7/32 dev lo")
    running.computer.check("ip route add 203.0.113.7 via 10.0.0.1; sysctl -qw net.ipv4.conf.vc-router.rp_filter=0")
    with listen(running.outside, OUTSIDE, 443):
        source = running.guest.call(lambda: socket.socket(socket.AF_INET))
        with closing(source):
            source.bind(("203.0.113.7", 0))
            source.settimeout(BLOCKED_S)
            with pytest.raises(OSError, match="timed out"):
                source.connect((OUTSIDE, 443))
    running.computer.check("ip route del 203.0.113.7")


def test_the_computer_forwards_no_packets_between_its_other_networks(running: RouterWorld) -> None:
    with listen(running.private, PRIVATE, 80):
        assert not reaches(running.outside, PRIVATE, 80)


def test_forwarding_that_was_on_before_stays_on(world: RouterWorld) -> None:
    world.computer.check("sysctl -qw net.ipv4.ip_forward=1")
    try:
        with listen(world.private, PRIVATE, 80):
            world.up()
            assert reaches(world.outside, PRIVATE, 80)
            world.router("down")
            assert reaches(world.outside, PRIVATE, 80)
    finally:
        world.computer.check("sysctl -qw net.ipv4.ip_forward=0")


def test_connections_from_outside_fit_the_mtu_of_the_vpn(running: RouterWorld) -> None:
    running.computer.check("ip link set vc-router mtu 1400")
    with listen(running.guest, GUEST, 80) as server, connect(running.outside, COMPUTER, 8080):
        assert read_segment_size(server) <= 1400 - 40
    running.computer.check("ip link set vc-router mtu 1500")


def test_connections_to_the_outside_fit_the_mtu_of_the_link(running: RouterWorld) -> None:
    running.computer.check("ip link set out0 mtu 1400")
    with listen(running.outside, OUTSIDE, 443) as server, connect(running.guest, OUTSIDE, 443):
        assert read_segment_size(server) <= 1400 - 40
    running.computer.check("ip link set out0 mtu 1500")


def test_router_advertisements_of_other_networks_remain_valid(running: RouterWorld) -> None:
    """By default, a kernel that forwards packets ignores router advertisements, and so loses its default route."""
    accepted = running.computer.check("cd /proc/sys/net/ipv6/conf; cat out0/accept_ra vc-router/accept_ra")
    assert accepted.split() == ["2", "1"]


@pytest.mark.parametrize("ups", [0, 1, 2])
def test_down_leaves_nothing_behind(world: RouterWorld, ups: int) -> None:
    world.computer.check("sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.lan0.forwarding=1")
    before = world.snapshot()
    for _ in range(ups):
        world.up()
    assert world.router("down").returncode == 0
    assert world.snapshot() == before
    world.computer.check("sysctl -qw net.ipv4.conf.lan0.forwarding=0")


def test_a_second_up_applies_changed_settings(world: RouterWorld) -> None:
    world.up()
    world.change({"tcp 8080 10.0.0.1 80": "tcp 9090 10.0.0.1 80"})
    world.up()
    with listen(world.guest, GUEST, 80):
        assert reaches(world.outside, COMPUTER, 9090)
        assert not reaches(world.outside, COMPUTER, 8080)


@pytest.mark.parametrize("program", ["mkdir", "awk", "mv", "nft --file", "openvpn"])
def test_down_repairs_a_killed_up(world: RouterWorld, tmp_path: Path, program: str) -> None:
    """``up`` is killed when ``up`` starts openvpn, or after another program that ``up`` runs has ended."""
    before = world.snapshot()
    name, _, option = program.partition(" ")
    (tmp_path / name).write_text(f"""#!/bin/sh
        [ "{name}" = openvpn ] || {shutil.which(name)} "$@"
        case "$*" in "{option}"*) kill -KILL $PPID ;; esac
    """)
    (tmp_path / name).chmod(0o755)
    if name == "openvpn":
        world.change(NO_CLUSTER | {"PROFILE=": "PROFILE=demo.ovpn"})
    done = world.router("up", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == -9
    assert world.router("down").returncode == 0
    assert world.snapshot() == before


def test_a_failed_up_undoes_its_changes(world: RouterWorld) -> None:
    before = world.snapshot()
    world.change(NO_CLUSTER)
    done = world.router("up")
    assert done.returncode == 1
    assert "expected the interface vc-absent of an OpenVPN client" in done.stderr
    assert world.snapshot() == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tcp 8080 10.0.0.1 80", "tcp many 10.0.0.1 80", "nft refused the rules"),
        ("SUBNETS='10.0.0.0/24", "SUBNETS='192.168.1.0/24", "192.168.1.0/24 is in use at this computer"),
        ("SUBNETS='10.0.0.0/24 fd00::/64'", "SUBNETS=", "expected values of INTERFACE and SUBNETS"),
    ],
)
def test_settings_that_cannot_work_change_nothing(world: RouterWorld, old: str, new: str, message: str) -> None:
    before = world.snapshot()
    world.change({old: new})
    done = world.router("up")
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert world.snapshot() == before


def test_a_computer_is_the_router_of_only_one_cluster(running: RouterWorld, tmp_path: Path) -> None:
    running._write_files(tmp_path / "second")
    done = running.computer.run(str(tmp_path / "second/router"), "up", env=running.environment)
    assert (done.returncode, f"sudo {running.folder}/router down" in done.stderr) == (1, True), done.stderr


def test_another_firewall_that_drops_packets_is_named(world: RouterWorld) -> None:
    world.computer.check("nft 'table ip other { chain f { type filter hook forward priority 0; policy drop; }; }'")
    assert "another firewall" in world.router("up").stderr
    world.computer.check("nft delete table ip other")


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_the_error_without_root_rights_contains_the_remedy(world: RouterWorld, tmp_path: Path, command: str) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = world.router(command, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, f"router {command}" in done.stderr) == (1, True), done.stderr


def test_status_shows_whether_the_router_is_up(world: RouterWorld) -> None:
    assert world.router("status").stdout == "down\n"
    world.up()
    assert world.router("status").stdout.startswith("up since ")


def test_the_script_waits_for_the_process_id_of_openvpn(world: RouterWorld, tmp_path: Path) -> None:
    openvpn = tmp_path / "openvpn"
    openvpn.write_text(SLOW_OPENVPN)
    openvpn.chmod(0o755)
    world.change(NO_CLUSTER | {"PROFILE=": "PROFILE=demo.ovpn"})
    done = world.router("up", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
