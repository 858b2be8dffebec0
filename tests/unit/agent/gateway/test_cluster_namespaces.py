"""Tests of a gateway's namespaces on the real kernel."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest
from support.fake_machine import FakeUplinkRecords
from support.gateways import routing_world
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.gateway import cluster_namespaces, namespace_requests
from virtcloud.agent.gateway.cluster_namespaces import ClusterNamespaces
from virtcloud.agent.gateway.namespace_difference import find_namespace_changes, find_unwanted_namespaces
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import NotFound, Refused, Unsafe
from virtcloud.model.gateway_access import derive_gateway_mac
from virtcloud.model.wanted import Segment

GATEWAY4, GATEWAY6 = "10.0.0.246", "fd00::246"


def make_segment(vlan: int = 100) -> Segment:
    addresses = (f"{GATEWAY4}/24", f"{GATEWAY6}/64")
    return Segment.model_validate(
        {"id": f"c{vlan}", "key": "demo", "vlan": vlan, "port": "eth0", "gateway_addresses": addresses}
    )


def ip(command: str) -> None:
    subprocess.run([shutil.which("ip") or "ip", *command.split()], check=True)  # noqa: S603 - iproute2


class Gateway:
    """A gateway with clusters. Each cluster has a bridge and one guest, which is the interface ``guest<vlan>``."""

    def __init__(self, kernel: NetlinkKernel, folder: Path, *vlans: int) -> None:
        self.kernel, self.folder = kernel, folder / "namespaces"
        self.segments = tuple(make_segment(vlan) for vlan in vlans or (100,))
        self.namespaces = ClusterNamespaces(kernel, self.folder)
        self.applied = 0
        for segment in self.segments:
            self._add_network(segment.vlan)

    def _add_network(self, vlan: int) -> None:
        bridge = self.kernel.add_bridge(f"br{vlan}")
        self.kernel.change(bridge, alias=names.ownership_alias(f"c{vlan}"), mtu=1400, up=True)
        kernel_links.link("add", ifname=f"port{vlan}", kind="veth", peer=f"guest{vlan}")
        self.kernel.change(kernel_links.find_index(f"port{vlan}"), master=bridge, up=True)
        Path(f"/proc/sys/net/ipv6/conf/guest{vlan}/accept_dad").write_text("0")
        self.kernel.change(kernel_links.find_index(f"guest{vlan}"), up=True)
        for address in ("10.0.0.5/24", "fd00::5/64"):
            ip(f"address add {address} dev guest{vlan}")

    def find_steps(self) -> list[str]:
        return [str(step) for step in self._find_steps()]

    def _find_steps(self) -> Iterator[object]:
        observed = self.namespaces.read(self.kernel.list_interfaces())
        yield from find_unwanted_namespaces(self.segments, observed)
        for segment in self.segments:
            yield from find_namespace_changes(segment, observed)

    def reconcile(self) -> list[str]:
        """Apply the steps that lead to the wanted state, and set ``applied`` to their number.

        Read the state again, and return the steps that are still missing.
        """
        steps = list(self._find_steps())
        self.applied = len(steps)
        for step in steps:
            self.namespaces.apply(step)  # type: ignore[arg-type] # all steps are those of namespaces
        return self.find_steps()

    def run(self, *command: str) -> str:
        enter = [shutil.which("nsenter") or "nsenter", f"--net={self.folder / 'c100'}", *command]
        return subprocess.run(enter, check=True, capture_output=True, text=True).stdout  # noqa: S603 - tests' commands

    def ping(self, address: str = GATEWAY4, vlan: int = 100) -> bool:
        command = [shutil.which("ping") or "ping", "-c1", "-W2", "-I", f"guest{vlan}", address]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - iputils

    def close(self) -> None:
        for path in self.folder.glob("*"):
            self.namespaces.ensure_no_namespace(path.name)


@pytest.fixture
def with_gateway(in_namespace: Run) -> Callable[..., object]:

    def run(work: Callable[[Gateway], object], *vlans: int) -> object:
        def run_opened() -> object:
            with TemporaryDirectory(prefix="gateway-") as folder, closing(NetlinkKernel()) as kernel:
                gateway = Gateway(kernel, Path(folder), *vlans)
                try:
                    gateway.reconcile()
                    return work(gateway)
                finally:
                    gateway.close()

        return in_namespace(run_opened)

    return run


@contextmanager
def listening(gateway: Gateway) -> Iterator[None]:
    code = "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True); s.accept()"
    enter = [shutil.which("nsenter") or "nsenter", f"--net={gateway.folder / 'c100'}", sys.executable, "-c", code]
    with subprocess.Popen(enter, stdout=subprocess.PIPE) as server:  # noqa: S603 - the program above
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield
        finally:
            server.kill()


def connect(address: str = GATEWAY4) -> str:
    with socket.socket() as client:
        client.settimeout(0.5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"guest100")
        try:
            client.connect((address, 7000))
        except OSError as error:
            return str(error)
        return "connected"


def test_a_guest_can_ping_the_gateway(with_gateway: Callable[..., object]) -> None:
    assert with_gateway(lambda gateway: (gateway.ping(), gateway.ping(GATEWAY6))) == (True, True)


def read_neighbours() -> dict[str, str]:
    """Return the MAC addresses that the guest has cached, by IP address."""
    command = [shutil.which("ip") or "ip", "-json", "neighbour", "show", "dev", "guest100"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603 - iproute2
    return {one["dst"]: one["lladdr"] for one in listed if one["dst"] in {GATEWAY4, GATEWAY6}}


def test_guests_learn_the_mac_address_of_a_new_gateway(with_gateway: Callable[..., object]) -> None:
    """The guest has cached the MAC address of the former gateway."""

    def work(gateway: Gateway) -> object:
        gateway.namespaces.ensure_no_namespace("c100")
        for address in (GATEWAY4, GATEWAY6):
            ip(f"neighbour replace {address} lladdr 02:00:00:00:00:99 dev guest100 nud stale")
        gateway.reconcile()
        wanted = dict.fromkeys(
            (GATEWAY4, GATEWAY6), derive_gateway_mac(gateway.segments[0].id, gateway.segments[0].gateway_addresses[0])
        )
        deadline = time.monotonic() + 20
        while read_neighbours() != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        return read_neighbours() == wanted

    assert with_gateway(work) is True


def test_identical_networks_have_separate_namespaces(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        gateway.run("ip", "link", "set", "eth0", "down")
        return gateway.ping(vlan=100), gateway.ping(vlan=200)

    assert with_gateway(work, 100, 200) == (False, True)


def test_a_program_in_the_namespace_accepts_no_connections(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        with listening(gateway):
            return connect()

    assert with_gateway(work) == "timed out"


DRIFT = {
    "address": "ip address delete 10.0.0.246/24 dev eth0",
    "other address": "ip address add 10.0.0.9/24 dev eth0",
    "down": "ip link set eth0 down",
    "flush": "nft flush ruleset",
    "policy": "nft 'add chain bridge virtcloud input { policy accept; }'",
    "dormant": "nft 'add table bridge virtcloud { flags dormant; }'",
    "hook": "nft delete chain bridge virtcloud input",
    "sysctl": "sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'",
    "device": "ip link delete eth0",
    "port": "ip link set port0 nomaster",
    "veth": "ip link delete port0",
    "route": "ip route add default via 10.0.0.5",
    "flushed routes": "ip route flush table main",
    "flushed IPv6 routes": "ip -6 route flush table main",
    "all flushed routes": "ip route flush table all",
}


def test_drift_in_a_namespace_is_corrected(with_gateway: Callable[..., object]) -> None:
    def drift(gateway: Gateway, command: str) -> object:
        gateway.run("sh", "-c", command)
        remaining = gateway.reconcile()
        return gateway.applied, remaining

    def work(gateway: Gateway) -> object:
        return gateway.find_steps(), {name: drift(gateway, command) for name, command in DRIFT.items()}, gateway.ping()

    assert with_gateway(work) == ([], dict.fromkeys(DRIFT, (1, [])), True)


PORT_DRIFT = {
    "port": "ip link delete vg100",
    "port down": "ip link set vg100 down",
    "bridge": "ip link set vg100 nomaster",
    "mtu": "ip link set vg100 mtu 1300",
    "file": "umount FOLDER/c100",
}


def test_drift_of_a_port_is_corrected(with_gateway: Callable[..., object]) -> None:
    def drift(gateway: Gateway, command: str) -> object:
        subprocess.run(command.replace("FOLDER", str(gateway.folder)).split(), check=True)  # noqa: S603 - see above
        remaining = gateway.reconcile()
        return gateway.applied, remaining

    def work(gateway: Gateway) -> object:
        return {name: drift(gateway, command) for name, command in PORT_DRIFT.items()}, gateway.ping()

    assert with_gateway(work) == (dict.fromkeys(PORT_DRIFT, (1, [])), True)


def test_the_next_agent_finds_the_namespace_unchanged(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        gateway.namespaces = ClusterNamespaces(gateway.kernel, gateway.folder)
        return gateway.find_steps()

    assert with_gateway(work) == []


def test_the_gateway_keeps_its_mac_address(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        before = gateway.run("ip", "-br", "link")
        ip("link delete vg100")
        gateway.reconcile()
        after = gateway.run("ip", "-br", "link")
        return len({text.split("eth0")[1].split()[1] for text in (before, after)})

    assert with_gateway(work) == 1


def test_a_leftover_port_is_replaced(with_gateway: Callable[..., object]) -> None:
    """If the agent is killed while it creates a port, the port may keep its temporary name and have no alias."""

    def work(gateway: Gateway) -> object:
        ip("link set vg100 down")
        ip("link set vg100 name vcnewg-100")
        return gateway.reconcile(), gateway.ping()

    assert with_gateway(work) == ([], True)


def test_a_foreign_interface_with_a_ports_name_stays(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        ip("link delete vg100")
        foreign = gateway.kernel.add_bridge("vg100")
        with pytest.raises(Unsafe, match="interface vg100 belongs to no network of VLAN 100: remove or rename it"):
            gateway.reconcile()
        return kernel_links.find_index("vg100") == foreign

    assert with_gateway(work) is True


def test_a_removed_network_leaves_no_port_mount_or_folder(with_gateway: Callable[..., object]) -> None:
    def work(gateway: Gateway) -> object:
        gateway.segments = ()
        steps = gateway.reconcile()
        ports = [interface.name for interface in gateway.kernel.list_interfaces() if interface.name.startswith("vg")]
        mounts = Path("/proc/self/mounts").read_text().count(str(gateway.folder))
        return steps, ports, mounts, list(gateway.folder.iterdir())

    assert with_gateway(work) == ([], [], 0, [])


def test_a_network_with_another_vlan_id_gets_a_new_link(with_gateway: Callable[..., object]) -> None:
    """The network keeps its namespace when its VLAN ID changes from 100 to 300.

    The link ``vu100`` has its other end in this namespace. The removal of the segment must delete the link.
    """

    def work(gateway: Gateway) -> object:
        gateway.segments = (routing_world.make_segment(100),)
        before = gateway.reconcile()
        ip("link set port100 nomaster")
        SegmentInterfaces(gateway.kernel, FakeUplinkRecords()).ensure_no_segment("c100", 100)
        gateway.kernel.change(gateway.kernel.add_bridge("br300"), alias=names.ownership_alias("c100"))
        gateway.segments = (gateway.segments[0].model_copy(update={"vlan": 300}),)
        after = gateway.reconcile()
        return before, after, [one.name for one in gateway.kernel.list_interfaces() if one.name.startswith("vu")]

    assert with_gateway(work) == ([], [], ["vu300"])


def test_an_unknown_network_has_no_namespace(tmp_path: Path) -> None:
    namespaces = ClusterNamespaces(None, tmp_path)  # type: ignore[arg-type] # no operation of the kernel is needed
    with pytest.raises(NotFound, match="no network namespace of cluster c300"), namespaces.open_namespace("c300"):
        pytest.fail("opened")


def test_a_fault_of_the_program_is_reported_in_one_line() -> None:
    """During an upgrade of virtcloud, the program that configures namespaces can be newer than the agent."""
    with Path("/proc/self/ns/net").open("rb") as namespace, pytest.raises(Refused) as raised:
        namespace_requests.run_program([{"descriptor": namespace.fileno(), "tables": []}])
    assert str(raised.value) == (
        "cannot read or configure network namespaces: KeyError: 'unwanted'; the agent's log has the whole error; "
        "if virtcloud was upgraded since the agent's start, restart the agent"
    )


def test_refused_addresses_of_the_gateway_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace drops packets to the addresses of the gateway that were last written to the namespace.

    Without a repeated write, guests could reach a new address of the gateway.
    """
    answers: list[dict[str, Any]] = [{"error": "busy"}, {}, {}]
    written = []

    def answer(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        written.append(len(requests))
        return [answers.pop(0)]

    monkeypatch.setattr(cluster_namespaces, "run_program", answer)
    monkeypatch.setattr(ClusterNamespaces, "open_namespace", lambda *_: nullcontext(0))
    with closing(NetlinkKernel()) as kernel:
        namespaces = ClusterNamespaces(kernel, tmp_path, list_addresses=lambda: frozenset({"192.0.2.9"}))
        for _ in range(3):
            namespaces.receive([routing_world.make_segment(100)])
    assert written == [1, 1]


def test_correct_sets_repeats_a_failed_write_of_gateway_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`receive` fails to write the gateway's addresses. `correct_sets` writes them again, with addresses of FQDNs."""
    written: list[Any] = []

    def refuse(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        written.extend(request["sets"]["gateway4"] for request in requests)
        return [{"error": "busy"} for _ in requests]

    monkeypatch.setattr(cluster_namespaces, "run_program", refuse)
    monkeypatch.setattr(ClusterNamespaces, "open_namespace", lambda *_: nullcontext(0))
    segment = routing_world.make_segment(100, fqdns=("a.example",))
    with closing(NetlinkKernel()) as kernel:
        namespaces = ClusterNamespaces(kernel, tmp_path, list_addresses=lambda: frozenset({"192.0.2.9"}))
        namespaces.receive([segment])
        namespaces.correct_sets([segment])
    assert written == [[4, ["192.0.2.9"]], [4, ["192.0.2.9"]]]


def test_resolved_fqdns_are_written_with_the_newest_gateway_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`receive` writes a new address of the gateway while the thread that resolves FQDNs waits for the lock."""
    written: list[Any] = []

    def accept(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        written.extend(request["sets"]["gateway4"] for request in requests)
        return [{} for _ in requests]

    @contextmanager
    def receive_first() -> Iterator[None]:
        namespaces._sets_lock = Lock()
        addresses.append("192.0.2.10")
        namespaces.receive([segment])
        yield

    monkeypatch.setattr(cluster_namespaces, "run_program", accept)
    monkeypatch.setattr(ClusterNamespaces, "open_namespace", lambda *_: nullcontext(0))
    segment, addresses = routing_world.make_segment(100, fqdns=("a.example",)), ["192.0.2.9"]
    with closing(NetlinkKernel()) as kernel:
        namespaces = ClusterNamespaces(kernel, tmp_path, list_addresses=lambda: frozenset(addresses))
        namespaces.receive([segment])
        namespaces._sets_lock = receive_first()  # type: ignore[assignment]
        namespaces.correct_sets([segment])
    both = [4, ["192.0.2.10", "192.0.2.9"]]
    assert written == [[4, ["192.0.2.9"]], both, both]


def test_correct_sets_writes_no_gateway_addresses_before_receive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that resolves FQDNs can call `correct_sets` before the first successful call of `receive`."""
    written: list[Any] = []

    def accept(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        written.extend(request["sets"]["gateway4"] for request in requests)
        return [{} for _ in requests]

    monkeypatch.setattr(cluster_namespaces, "run_program", accept)
    monkeypatch.setattr(ClusterNamespaces, "open_namespace", lambda *_: nullcontext(0))
    segment = routing_world.make_segment(100, fqdns=("a.example",))
    with closing(NetlinkKernel()) as kernel:
        namespaces = ClusterNamespaces(kernel, tmp_path, list_addresses=lambda: frozenset({"192.0.2.9"}))
        namespaces.correct_sets([segment])
        namespaces.receive([segment])
    assert written == [[4, ["192.0.2.9"]]]
