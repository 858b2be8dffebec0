"""A gateway on the real kernel, with two identical clusters, an outside network, and a management network."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.gateway.cluster_namespaces import ClusterNamespaces
from virtcloud.agent.gateway.fqdn_addresses import FqdnAddresses
from virtcloud.agent.gateway.namespace_difference import BuildNamespace, RemoveNamespace
from virtcloud.agent.gateway.outside_difference import RouteOutside
from virtcloud.agent.gateway.outside_routing import OutsideRouting
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.model.wanted import HostWanted, Segment

NSENTER, IP = shutil.which("nsenter") or "nsenter", shutil.which("ip") or "ip"
SERVER, ADMINISTRATOR, GATEWAY = "192.0.2.10", "198.51.100.10", "192.0.2.1"
ROUTER = "10.0.0.250"
SERVE = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("ready", flush=True)
while True:
    connection, (address, _) = server.accept()
    connection.sendall(address.encode())
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


def make_segment(
    vlan: int, networks: tuple[str, ...] = ("0.0.0.0/0",), fqdns: tuple[str, ...] = (), private: tuple[str, ...] = ()
) -> Segment:
    """Return the segment of the cluster on ``vlan``. The clusters on different VLANs have the same addresses."""
    destination = {"name": "web", "networks": networks, "ports": ["tcp/8080"]}
    named = destination | {"fqdns": fqdns, "private_networks": private}
    link = {"interface": "outside0", "addresses": [GATEWAY]}
    router = {
        "addresses": [f"{ROUTER}/24"],
        "link": link,
        **({"named_destinations": [named]} if fqdns else {"destinations": [destination]}),
    }
    return Segment.model_validate(
        {
            "id": f"c{vlan}",
            "key": f"demo{vlan}",
            "vlan": vlan,
            "port": "eth0",
            "gateway_addresses": ["10.0.0.246/24"],
            "router": router if networks or fqdns else None,
        }
    )


class Surroundings:
    """A gateway in the calling thread's network namespace, and computers in separate network namespaces."""

    def __init__(self, kernel: NetlinkKernel, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.start_agent()
        self.applied = 0
        self.segments: tuple[Segment, ...] = (make_segment(100), make_segment(200))
        self.run("", "sysctl", "-w", "net.ipv4.ip_forward=1")  # the gateway also forwards packets of other networks
        self.ip("link set lo up")
        for vlan in (100, 200):
            bridge = kernel.add_bridge(f"br{vlan}")
            kernel.change(bridge, alias=names.ownership_alias(f"c{vlan}"), up=True)
            self.add_computer(f"guest{vlan}", "10.0.0.5/24", ROUTER)
            self.ip(f"link set to-guest{vlan} master br{vlan}")
        self.add_computer("server", f"{SERVER}/24", GATEWAY)
        self.ip("link set to-server name outside0 up", f"address add {GATEWAY}/24 dev outside0")
        self.add_computer("admin", f"{ADMINISTRATOR}/24", "198.51.100.1")
        self.ip("address add 198.51.100.1/24 dev to-admin")

    def start_agent(self) -> None:
        """Replace the agent's objects by new objects, as a restart of the agent does."""
        self.fqdns = FqdnAddresses(self.folder / "state" / "fqdns.json", lambda: closing(NetlinkKernel()))
        self.namespaces = ClusterNamespaces(
            self.kernel, self.folder / "namespaces", self.fqdns.list_admitted, self.kernel.list_addresses
        )
        self.outside = OutsideRouting(self.kernel, self.fqdns)

    def correct_sets(self) -> None:
        """Correct each packet filter whose addresses of FQDNs differ from the last DNS answers."""
        self.namespaces.correct_sets(self.outside.correct_sets())

    def ip(self, *commands: str, computer: str = "") -> None:
        enter = (NSENTER, f"--net={self.folder / computer}") if computer else ()
        lines = "".join(f"{command}\n" for command in commands)
        subprocess.run([*enter, IP, "-batch", "-"], input=lines, text=True, check=True)  # noqa: S603 - iproute2

    def add_computer(self, name: str, address: str, router: str) -> None:
        (self.folder / name).touch()
        unshare = shutil.which("unshare") or "unshare"
        subprocess.run([unshare, f"--net={self.folder / name}", "true"], check=True)  # noqa: S603 - util-linux
        with (self.folder / name).open() as namespace:
            index = self.kernel.add_namespace_veth(f"to-{name}", "eth0", namespace.fileno(), 1500)
        self.kernel.change(index, up=True)
        commands = f"address add {address} dev eth0", "link set lo up", "link set eth0 up"
        self.ip(*commands, f"route add default via {router} onlink dev eth0", computer=name)

    def find_steps(self) -> list[Any]:
        interfaces = self.kernel.list_interfaces()
        observed = ObservedHost(namespaces=self.namespaces.read(interfaces), outside=self.outside.read(interfaces))
        steps = compute_difference(HostWanted(segments=self.segments), observed)
        return [step for step in steps if isinstance(step, BuildNamespace | RemoveNamespace | RouteOutside)]

    def reconcile(self) -> list[str]:
        """Apply the steps that lead to the wanted state, and set ``applied`` to the number of these steps.

        Read the state again, and return the steps that are still missing.
        """
        steps = self.find_steps()
        self.applied = len(steps)
        for step in steps:
            if isinstance(step, RouteOutside):
                self.outside.ensure(step.segments)
            else:
                self.namespaces.apply(step)
        return [str(step) for step in self.find_steps()]

    def run(self, computer: str, *command: str) -> str:
        enter = (NSENTER, f"--net={self.folder / computer}") if computer else ()
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout  # noqa: S603

    def fetch(self, address: str, port: int = 8080, computer: str = "guest100", limit_s: float = 0.4) -> str:
        """Connect from a computer to a server. Return the client's address that the server saw.

        Return ``none`` if the connection is not accepted within ``limit_s`` seconds.
        """
        return self.run(computer, sys.executable, "-I", "-S", "-c", FETCH, address, str(port), str(limit_s)).strip()

    @contextmanager
    def serving(self, computer: str, port: int = 8080) -> Iterator[None]:
        """Run a server on a computer, or on the gateway (""), until the context ends."""
        enter = (NSENTER, f"--net={self.folder / computer}") if computer else ()
        command = [*enter, sys.executable, "-I", "-S", "-c", SERVE, str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: S603 - the program above
            assert server.stdout is not None
            server.stdout.readline()
            try:
                yield
            finally:
                server.kill()

    def close(self) -> None:
        for path in (self.folder / "namespaces").glob("*"):
            self.namespaces.ensure_no_namespace(path.name)
        for path in self.folder.iterdir():
            if path.is_file():
                subprocess.run([shutil.which("umount") or "umount", str(path)], check=True)  # noqa: S603 - util-linux


Run = Callable[[Callable[[Surroundings], Any]], Any]


@contextmanager
def run_gateway(unshare: Callable[[], None], prepare: Callable[[Surroundings, ExitStack], None]) -> Iterator[Run]:
    """Create a gateway, call ``prepare``, and reconcile. Yield a function that runs code in the gateway's namespace."""
    stack = ExitStack()

    def start() -> Surroundings:
        folder = stack.enter_context(TemporaryDirectory(prefix="outside-"))
        made = Surroundings(stack.enter_context(closing(NetlinkKernel())), Path(folder))
        stack.callback(made.close)
        prepare(made, stack)
        assert made.reconcile() == []
        return made

    with ThreadPoolExecutor(1, initializer=unshare) as thread:
        try:
            made = thread.submit(start).result()
            yield lambda work: thread.submit(work, made).result()
        finally:
            thread.submit(stack.close).result()
