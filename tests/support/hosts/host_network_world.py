"""A host with a real agent on the real kernel, in its own network namespace, for random tests of the host's network.

Only the guests are fakes: a guest is a persistent tap, which the hypervisor puts into the guest's bridge.
"""

import ctypes
import errno
import shutil
import socket
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from support.fake_machine import FakeElementApi, FakeGroups, FakeRoots
from support.hosts.container_images import write_container_image
from support.hosts.host_network_doubles import Killed, Meter, MeteredRecords, MeteredSocket, TaggedLinks, TapHypervisor
from virtcloud.agent import log
from virtcloud.agent.guests.admission_rules import AdmissionRules
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import kernel as kernel_module
from virtcloud.agent.network import names, nftables
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, VirtcloudError

T = TypeVar("T")
CLONE_NEWNET: Final = 0x40000000
UPLINKS: Final = {"eth0": 1500, "eth1": 9000, "enp65s0f0np0": 1500}
"""The physical links and their MTUs."""
HOST_IP: Final = ("ipv4/rp_filter", "ipv4/arp_ignore", "ipv6/addr_gen_mode", "ipv6/disable_ipv6")
SYSCTL: Final = Path("/proc/sys/net")
ROUNDS: Final = 3


class Agent:
    """One process of the agent. ``boot`` is the ID of the host's boot."""

    def __init__(self, world: "HostNetworkWorld") -> None:
        self.kernel = NetlinkKernel()
        self.kernel._socket = MeteredSocket(self.kernel._socket, world.meter, world.tagged)
        set_mtu = self.kernel.set_mtu

        def count_and_set(name: str, mtu: int) -> None:
            world.meter.count(f"MTU {mtu} of {name}")
            set_mtu(name, mtu)

        self.kernel.set_mtu = count_and_set
        self.records = MeteredRecords(world.state / "uplinks", f"boot {world.boots}", world.meter)
        settings = GuestSettings(
            world.images,
            world.state / "guests",
            "x86_64",
            stop_grace_s=0.1,
            admission=AdmissionRules(open_filters=True),
        )
        roots = FakeRoots(world.state / "guests")
        guests = LocalGuests(
            {Hypervisor.LXC: world.hypervisor}, settings, lambda _seconds: None, roots, groups=FakeGroups()
        )
        self.host = LocalHost(SegmentInterfaces(self.kernel, self.records), guests, NftablesFilters())
        timing = ReconcileTiming(check_s=0)
        self.reconciler = HostReconciler(
            "h1", world.sbf, self.host, StopSignal(), timing, clock=lambda: world.now, jitter=lambda: 0
        )


class HostNetworkWorld:
    """A host in its own network namespace, with one agent. All methods but `call` and `close` run in the namespace."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.images, self.state = self.folder / "images", self.folder / "state"
        write_container_image(self.images)
        self.meter, self.sbf, self.boots, self.now = Meter(), FakeElementApi(), 0, 0.0
        self.errors: list[Exception] = []
        self._patches = ExitStack()
        for patch in self._list_patches():
            self._patches.enter_context(patch)
        self._thread = ThreadPoolExecutor(1)
        self.call(self.boot)

    def _list_patches(self) -> Iterator[Any]:
        write, run, meter = kernel_module._write_sysctls, nftables._run, self.meter

        def write_one_by_one(name: str, settings: Mapping[str, str]) -> None:
            for setting, value in settings.items():
                path = kernel_module._sysctl_path(name, setting)
                changes = path.exists() and path.read_text().strip() != value
                meter.count(f"write {setting} of {name}", changes=changes)
                write(name, {setting: value})

        def run_counted(commands: str, output_flags: int = 0) -> str:
            meter.count(f"nft {commands[:60]}", changes=not commands.startswith("list"))
            return run(commands, output_flags)

        def report(error: Exception, **_fields: object) -> VirtcloudError:
            self.errors.append(error)
            return VirtcloudError(str(error))

        yield mock.patch.object(kernel_module, "_write_sysctls", write_one_by_one)
        yield mock.patch.object(nftables, "_run", run_counted)
        yield mock.patch.object(kernel_module, "parse_interface", self.parse)
        yield mock.patch.object(log, "internal_error", report)

    def parse(self, message: Any, addressed: Container[int]) -> KernelInterface:
        return self.tagged.parse(message, addressed)

    def call(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def close(self) -> None:
        self.call(self._stop)
        self._thread.shutdown()
        self._patches.close()
        shutil.rmtree(self.folder)

    def boot(self) -> None:
        """Start the host: only the physical links exist."""
        if self.boots:
            self._stop()
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot create a network namespace")
        self.boots += 1
        self.route, self._reader = IPRoute(), NetlinkKernel()
        self.hypervisor, self.tagged = TapHypervisor(self.meter, self.route), TaggedLinks(self.route)
        for path in (SYSCTL / "bridge").glob("bridge-nf-call-*"):
            path.write_text("0")
        for name in UPLINKS:
            self.add_uplink(name)
        self.agent = Agent(self)

    def restart(self) -> None:
        self.agent.kernel.close()
        self.agent = Agent(self)

    def _stop(self) -> None:
        for part in (self.agent.kernel, self._reader, self.route):
            part.close()

    def add_uplink(self, name: str) -> None:
        self.route.link("add", ifname=name, kind="veth", peer={"ifname": f"p{name}", "mtu": UPLINKS[name]})
        self.route.link("set", index=socket.if_nametoindex(f"p{name}"), state="up")
        index = socket.if_nametoindex(name)
        if name == "eth1":
            write_sysctls(name, {"ipv4/rp_filter": "2", "ipv4/arp_ignore": "2"})
        self.route.link("set", index=index, mtu=UPLINKS[name], state="up")
        if name == "eth1":
            self.route.addr("add", index=index, address="fe80::7", prefixlen=64)

    # The agent.

    def reconcile(self, left: int = 0, fault: Callable[[str], None] | None = None) -> bool:
        """Reconcile at most ``ROUNDS`` times. Return whether the agent confirmed the whole document.

        ``fault`` is called before each request after the first ``left`` requests. If ``fault`` kills the agent, a
        new agent starts.
        """
        self.meter.left, self.meter.fault = left, fault
        try:
            for _ in range(ROUNDS):
                self.now += 1000
                self.agent.reconciler.reconcile_once()
                if self.is_confirmed():
                    return True
        except Killed:
            self.meter.fault = None
            self.restart()
        finally:
            self.meter.fault = None
        return False

    def is_confirmed(self) -> bool:
        document, kind = self.sbf.document, self.sbf.reports[-1][0]
        return kind == "confirmed" and document.confirmed_revision == document.revision and not document.incomplete

    def die(self, _request: str) -> None:
        raise Killed

    def refuse(self, request: str) -> None:
        self.meter.fault = None
        if request.startswith(("link", "addr", "brport", "write", "MTU")):
            raise NetlinkError(errno.ENOBUFS, "No buffer space available")
        raise Refused("no memory")

    # Other programs.

    def list_links(self) -> dict[str, KernelInterface]:
        return {one.name: one for one in self._reader.list_interfaces()}

    def link(self, command: str, name: str | None = None, **values: Any) -> None:
        if name is not None:
            values["index"] = socket.if_nametoindex(name)
        if isinstance(values.get("master"), str):
            values["master"] = socket.if_nametoindex(values["master"])
        if values.get("kind") == "vlan":
            self.tagged.add(**{key: value for key, value in values.items() if key != "kind"})
        else:
            self.route.link(command, **values)
        if name in UPLINKS:
            self.tagged.follow(with_state="state" in values)

    def nft(self, commands: str) -> str:
        """Return the output of commands of another program. No fault interrupts these commands."""
        fault, self.meter.fault = self.meter.fault, None
        try:
            return nftables._run(commands)
        finally:
            self.meter.fault = fault


def write_sysctls(name: str, settings: Mapping[str, str]) -> None:
    for setting, value in settings.items():
        family, _, key = setting.partition("/")
        (SYSCTL / family / "conf" / name / key).write_text(value)


def read_sysctls(name: str) -> dict[str, str]:
    return {
        setting: (SYSCTL / family / "conf" / name / key).read_text().strip()
        for setting in HOST_IP
        for family, _, key in [setting.partition("/")]
    }


def is_ours(interface: KernelInterface) -> bool:
    """Return whether the agent, or a hypervisor for the agent, created an interface."""
    is_new = interface.name.startswith("vcnew")
    return names.cluster_of_alias(interface.alias) is not None or names.is_guest_port(interface.name) or is_new


def is_renamed_port(interface: KernelInterface) -> bool:
    """Return whether another program renamed an interface that is not a bridge. The agent replaces only bridges."""
    return interface.name.startswith("renamed") and interface.kind != "bridge"
