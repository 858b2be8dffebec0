"""Guests and metadata services of clusters on the real kernel, with the filters of guests."""

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyroute2 import IPRoute

from support.hosts.seed_documents import SEED, seeded_guest, seeded_segment
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run
from virtcloud.agent.difference import compute_difference
from virtcloud.agent.host_services.dnsmasq_config import ADDRESS
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import FilterGuests
from virtcloud.model.wanted import HostWanted, Segment

Answer = tuple[int, str]
NO_ANSWER: Answer = (0, "")
LIMIT_S, SHORT_S = 5.0, 0.4
FIRST, SECOND = "10.0.0.1", "10.0.0.2"


def make_segment(cluster: str = "c1", vlan: int = 100, **changes: Any) -> Segment:
    """Return a segment with the guests n1 and n2. Each guest of each cluster has a different host key."""
    guests = [
        seeded_guest(
            name=f"n{i}",
            mac=f"02:00:00:00:00:0{i}",
            addresses=[f"10.0.0.{i}/24", f"fd00::{i}/64"],
            seed={**SEED, "host_key": f"key of n{i} in {cluster}"},
        )
        for i in (1, 2)
    ]
    keys = {"id": cluster, "vlan": vlan, "host_services": ("dhcp", "metadata"), "members": {}}
    segment: Segment = seeded_segment(guests[0], **{**keys, "guests": guests, **changes})
    return segment


class GuestComputer:
    """A guest: a network namespace with an interface on the bridge. A thread runs the guest's programs."""

    def __init__(self, kernel: NetlinkKernel, segment: Segment, number: int, unshare: Callable[[], None]) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=unshare)
        guest = segment.guests[number]
        port = names.guest_port_name(segment.id, guest.name, segment.vlan)
        index = kernel.add_veth_pair(port, "eth0", self.run(threading.get_native_id), 1500, guest.mac)
        kernel.disable_host_ip(index, port)
        kernel.change(index, master=kernel_links.find_index(names.bridge_name(segment.vlan)), up=True)
        self.run(lambda: configure(*guest.addresses))

    def run(self, work: Callable[[], Any]) -> Any:
        return self._thread.submit(work).result()

    def fetch(self, path: str, server: str = ADDRESS, source: str = "", limit_s: float = LIMIT_S) -> Answer:
        """Return the status and the text of an answer, or `NO_ANSWER` after ``limit_s`` seconds."""
        answer: Answer = self.run(lambda: fetch(path, server, source, limit_s))
        return answer

    def host_key(self) -> str:
        _, text = self.fetch("/user-data")
        return "".join(re.findall("key of n. in c.", text))

    def close(self) -> None:
        self._thread.shutdown()


def configure(*addresses: str) -> None:
    Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("0")
    kernel_links.link("set", index=kernel_links.find_index("eth0"), state="up")
    for address in addresses:
        add_address(address)
    with IPRoute() as route:
        route.route("add", dst=f"{ADDRESS}/32", oif=kernel_links.find_index("eth0"))


def add_address(address: str) -> None:
    host, _, length = address.partition("/")
    kernel_links.addr("add", index=kernel_links.find_index("eth0"), address=host, prefixlen=int(length))


def fetch(path: str, server: str, source: str, limit_s: float) -> Answer:
    connection = http.client.HTTPConnection(server, 80, timeout=limit_s, source_address=(source, 0) if source else None)
    with closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return NO_ANSWER


class World:
    """The guests and services of segments in a new network namespace, with the filters of guests."""

    def __init__(self, kernel: NetlinkKernel, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.servers = DnsmasqServers(kernel, folder)
        self.guests: list[GuestComputer] = []

    def add(self, segment: Segment, unshare: Callable[[], None]) -> None:
        bridge = self.kernel.add_bridge(names.bridge_name(segment.vlan))
        self.kernel.change(bridge, alias=names.ownership_alias(segment.id), up=True)
        self.guests += [GuestComputer(self.kernel, segment, number, unshare) for number in range(len(segment.guests))]
        self.servers.ensure_server(segment)

    def pid(self, record: str = "metadata.json", cluster: str = "c1") -> int:
        found = re.search('"pid":([0-9]+)', (self.folder / cluster / record).read_text())
        assert found
        return int(found.group(1))

    def read(self, servers: DnsmasqServers | None = None) -> ObservedServer:
        return (servers or self.servers).read(self.kernel.list_interfaces())[0]


def set_filters(segments: tuple[Segment, ...]) -> None:
    steps = compute_difference(HostWanted(segments=segments), ObservedHost(filters=ObservedFilters()))
    NftablesFilters().replace(next(step.ports for step in steps if isinstance(step, FilterGuests)))


def make_runner(in_namespace: Run, unshare: Callable[[], None]) -> Callable[..., Any]:

    @contextmanager
    def opened(*segments: Segment) -> Iterator[World]:
        with TemporaryDirectory(prefix="virtcloud-servers-") as temporary, closing(NetlinkKernel()) as kernel:
            Path(temporary).chmod(0o755)
            world = World(kernel, Path(temporary))
            with ExitStack() as stack:
                set_filters(segments)
                for segment in segments:
                    stack.callback(world.servers.ensure_no_server, segment.id)
                    world.add(segment, unshare)
                yield world
            for guest in world.guests:
                guest.close()

    def run(work: Callable[[World], object], *segments: Segment) -> object:
        def run_opened() -> object:
            with opened(*(segments or (make_segment(),))) as world:
                return work(world)

        return in_namespace(run_opened)

    return run
