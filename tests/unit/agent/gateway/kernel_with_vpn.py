"""Tests of the VPN on a kernel with 802.1Q support. `tests/lab/test_agent_kernel.py` runs this file in a lab."""

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from support.fake_machine import FakeUplinkRecords
from support.gateways.openvpn_world import LIMIT_S, TEST_FRAME, UDP, GatewayWorld, StockClient
from support.gateways.vpn_documents import VpnAuthority, VpnDevice
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters, _run
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import BuildSegment, FilterGuests, RemoveSegment, Step
from virtcloud.model.wanted import HostWanted, Segment

T = TypeVar("T")
SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID = 263, 8, 1 << 4  # linux/if_packet.h
MARKS = (b"first", b"second", b"third")


class TwoClusters:
    """A gateway with two clusters that have the same addresses.

    The gateway's uplink ``uplink0`` is connected to ``uplink1``.
    """

    def __init__(self, kernel: NetlinkKernel, folder: Path) -> None:
        kernel_links.link("add", ifname="uplink0", kind="veth", peer="uplink1")
        for name in ("uplink0", "uplink1"):
            kernel.change(kernel_links.find_index(name), up=True)
        self.kernel, self.authority = kernel, VpnAuthority()
        self.world = GatewayWorld(kernel, folder, self.authority)
        self.segments, self.filters = SegmentInterfaces(kernel, FakeUplinkRecords()), NftablesFilters()
        self.devices = [self.authority.make_device(name) for name in ("a1", "a2", "b1")]
        self.wanted = self.make_wanted(self.devices[:2], self.devices[2:])

    def make_wanted(self, first: list[VpnDevice], second: list[VpnDevice]) -> HostWanted:
        segments = tuple(
            Segment.model_validate(
                {
                    "id": f"c{vlan}",
                    "key": f"k{vlan}",
                    "vlan": vlan,
                    "port": "uplink0",
                    "grants": [device.grant(f"10.0.0.{200 + number}/24") for number, device in enumerate(devices)],
                }
            )
            for vlan, devices in ((100, first), (200, second))
        )
        server = self.authority.server.model_copy(update={"ports": {UDP: 1194}})
        return HostWanted(segments=segments, vpn=server)

    def find_steps(self, wanted: HostWanted) -> list[Step]:
        interfaces = self.kernel.list_interfaces()
        vpn = self.world.gateway.read(interfaces)
        observed = ObservedHost(self.segments.read(interfaces), filters=self.filters.read(), vpn=vpn)
        return compute_difference(wanted, observed)

    def reconcile(self, wanted: HostWanted) -> list[str]:
        """Apply the steps that lead to the wanted state.

        Return the texts of the applied steps, the word "then", and the texts of steps that are still missing.
        """
        self.world.gateway.receive(wanted, wanted.segments)
        steps = self.find_steps(wanted)
        for step in steps:
            match step:
                case BuildSegment(segment):
                    self.segments.ensure_segment(segment)
                case RemoveSegment(cluster, vlan):
                    self.segments.ensure_no_segment(cluster, vlan)
                case FilterGuests(_, ports):
                    self.filters.replace(ports)
                case _:
                    self.world.gateway.apply(step)  # type: ignore[arg-type] # the other steps are the VPN's
        return [str(step) for step in (*steps, "then", *self.find_steps(wanted))]

    def connect(self, device: VpnDevice) -> StockClient:
        client = self.world.connect(device)
        client.wait_until_connected()
        return client


def receive_marks(receiver: socket.socket, *last: tuple[str, int | None]) -> set[tuple[str, int | None]]:
    """Receive test frames until all of ``last`` have arrived. Return all received frames.

    In ``last`` and in the result, a frame is a pair: the element of `MARKS` that the frame's payload contains, as a
    text, and the frame's VLAN ID (None: untagged).
    """
    found: set[tuple[str, int | None]] = set()
    while not found.issuperset(last):
        data, controls, *_ = receiver.recvmsg(2048, 64)
        if TEST_FRAME in data[12:18]:
            status, *_, tag, _ = struct.unpack("IIIHHHH", controls[0][2])
            mark = next(mark.decode() for mark in MARKS if mark in data)
            found.add((mark, tag & 0xFFF if status & TP_STATUS_VLAN_VALID else None))
    return found


def open_receiver(interface: str) -> socket.socket:
    receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    receiver.bind((interface, 3))
    receiver.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    receiver.settimeout(LIMIT_S)
    return receiver


def run(in_namespace: Run, work: Callable[[TwoClusters], T]) -> T:
    def run_opened() -> T:
        with TemporaryDirectory(prefix="vpn-") as temporary, closing(NetlinkKernel()) as kernel:
            kernel.change(kernel_links.find_index("lo"), up=True)
            gateway = TwoClusters(kernel, Path(temporary))
            try:
                return work(gateway)
            finally:
                gateway.world.close()

    return in_namespace(run_opened)


def test_devices_reach_their_own_cluster_and_each_other(in_namespace: Run) -> None:
    def work(gateway: TwoClusters) -> list[set[tuple[str, int | None]]]:
        gateway.reconcile(gateway.wanted)
        clients = [gateway.connect(device) for device in gateway.devices]
        with ExitStack() as stack:
            interfaces = ("uplink1", clients[1].device, clients[2].device)
            receivers = [stack.enter_context(open_receiver(name)) for name in interfaces]
            for client, mark in zip((clients[0], clients[2], clients[0]), MARKS, strict=True):
                client.send(TEST_FRAME, mark.ljust(46))
            clients[2].send(TEST_FRAME, MARKS[-1].ljust(46), b"\x02\x00\x00\x00\x00\x03")
            last = ((("third", 100), ("third", 200)), (("third", None),), (("third", None),))
            return [receive_marks(receiver, *marks) for receiver, marks in zip(receivers, last, strict=True)]

    uplink, same_cluster, other_cluster = run(in_namespace, work)
    assert uplink == {("first", 100), ("second", 200), ("third", 100), ("third", 200)}
    assert same_cluster == {("first", None), ("third", None)}
    assert other_cluster == {("second", None), ("third", None)}


def test_drift_of_the_vpn_is_corrected(in_namespace: Run) -> None:
    def work(gateway: TwoClusters) -> object:
        gateway.reconcile(gateway.wanted)
        gateway.kernel.delete(kernel_links.find_index("vpn-udp.100"))
        gateway.kernel.change(kernel_links.find_index("vpn-udp.200"), up=False)
        _run("flush ruleset")
        return gateway.reconcile(gateway.wanted)

    steps = run(in_namespace, work)
    filtered = "filter the frames of 0 guests and 2 VPN ports"
    corrected = ["connect vpn-udp.100", "connect vpn-udp.200 (vpn-udp.200 is down)", "then"]
    assert steps == [filtered, filtered, *corrected]


def test_the_end_of_a_network_ends_its_connections_only(in_namespace: Run) -> None:
    def work(gateway: TwoClusters) -> tuple[str, list[str], set[str]]:
        gateway.reconcile(gateway.wanted)
        for device in gateway.devices:
            gateway.connect(device)
        steps = gateway.reconcile(gateway.wanted.model_copy(update={"segments": gateway.wanted.segments[1:]}))
        names = {interface.name for interface in gateway.kernel.list_interfaces()}
        return steps[-1], [connection.profile for connection in gateway.world.gateway.connections], names

    steps, profiles, names = run(in_namespace, work)
    assert (steps, profiles) == ("then", ["b1"])
    ours = {name for name in names if name.endswith((".100", ".200")) or name in {"br100", "br200"}}
    assert ours == {"br200", "uplink0.200", "vpn-udp.200"}
