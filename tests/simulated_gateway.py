"""A gateway whose kernel, disk, clock and OpenVPN servers are simulated, and an agent that can be killed at any effect.

The agent is the real agent, with the real threads of `DeviceControl`. A thread runs only while the test's thread waits
for it, so each sequence of calls always has the same result.
"""

import errno
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from fake_machine import FakeElementApi, FakeGroups, FakeKernel, FakeUplinkRecords
from fake_openvpn import FakeOpenvpn

from virtcloud.agent.gateway import connection_limits, device_control, management_socket, openvpn_processes, vpn_gateway
from virtcloud.agent.gateway.connection_limits import ConnectionLimits
from virtcloud.agent.gateway.management_messages import ManagementEvent, MessageParser
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.agent.gateway.vpn_gateway import VpnGateway
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network.guest_filters import FilteredPort, list_elements
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.network.owned_tables import OwnedTable, digest_rule
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import Refused, Unreachable

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT_S: Final = 60.0


class KilledError(BaseException):
    """The end of the agent's process by SIGKILL, which the agent's code does not catch."""


class SimulatedKernel(FakeKernel):
    """A kernel that refuses what Linux refuses, and that removes 802.1Q interfaces together with their parent."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] = lambda: None
        self._last = 0
        super().__init__()
        self._act = act

    def put(self, **values: Any) -> int:
        self._act()
        if values["name"] in self.names:
            raise Refused(f"the kernel refused to create {values['name']}: File exists")
        tag = values.get("parent"), values.get("vlan")
        if tag[1] is not None and any((one.parent, one.vlan) == tag for one in self.by_index.values()):
            raise Refused("the kernel refused to create an interface: File exists")
        self._last += 1
        self.by_index[self._last] = KernelInterface(index=self._last, **values)
        return self._last

    def add_tap(self, name: str) -> int:
        return self.put(name=name, kind="tun")

    def set_hairpin(self, index: int) -> None:
        if self._find(index).master is None:
            raise Refused(f"the kernel refused to set the hairpin mode of {index}: Operation not supported")
        self._act()
        self.by_index[index] = replace(self.by_index[index], hairpin=True)

    def change(self, index: int, **values: Any) -> None:
        self._find(index)
        self._act()
        if "master" in values:
            values["master"] = values["master"] or None
            if values["master"] != self.by_index[index].master:
                values["hairpin"] = False
        super().change(index, **values)

    def disable_host_ip(self, index: int, name: str) -> None:
        self._find(index)
        self._act()
        super().disable_host_ip(index, name)

    def delete(self, index: int) -> None:
        self._act()
        self.remove(index)

    def remove(self, index: int) -> None:
        for child in [one.index for one in self.by_index.values() if one.parent == index]:
            self.remove(child)
        super().delete(index)

    def find(self, name: str) -> KernelInterface | None:
        return next((one for one in self.by_index.values() if one.name == name), None)

    def find_tap(self, name: str) -> int | None:
        tap = self.find(name)
        return tap.index if tap is not None else None

    def _find(self, index: int) -> KernelInterface:
        if index not in self.by_index:
            raise Refused(f"the kernel refused to change interface {index}: No such device")
        return self.by_index[index]


class SimulatedFilters(NftablesFilters):
    """The table of the guests' filters in memory."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.ports: tuple[FilteredPort, ...] = ()

    def read(self) -> ObservedFilters:
        return ObservedFilters(list_elements(self.ports))

    def replace(self, ports: tuple[FilteredPort, ...]) -> None:
        self._act()
        self.ports = ports


class SimulatedTables:
    """The kernel's other tables in memory, as JSON of libnftables. The class has the interface of `KernelTables`."""

    def __init__(self, gateway: "SimulatedGateway") -> None:
        self._gateway = gateway

    def read(self, family: str, name: str) -> Any:
        return self._gateway.tables.get((family, name))

    def replace(self, table: OwnedTable) -> None:
        self._gateway.act()
        found: list[dict[str, Any]] = [{"table": {"family": table.family, "name": table.name}}]
        for name, chain in table.chains.items():
            kind, _, hook, *_, policy = chain.hook.replace(";", "").split()
            found.append({"chain": {"name": name, "type": kind, "hook": hook, "policy": policy}})
            found += [{"rule": {"chain": name, "comment": digest_rule(rule)}} for rule in chain.rules]
        self._gateway.tables[table.family, table.name] = {"nftables": found}

    def remove(self, family: str, name: str) -> None:
        self._gateway.act()
        self._gateway.tables.pop((family, name), None)


class TurnThread(threading.Thread):
    """A thread of the agent that runs only during `run_turn`."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        super().__init__(name=name, daemon=daemon)
        self._work = target
        self.has_ended = False
        self._parked, self._resumed = threading.Event(), threading.Event()

    def start(self) -> None:
        super().start()
        assert self._parked.wait(LIMIT_S)

    def run(self) -> None:
        try:
            self._work()
        except KilledError:
            pass
        finally:
            self.has_ended = True
            self._parked.set()

    def park(self) -> None:
        """Wait for the next turn. The thread itself calls this method."""
        self._resumed.clear()
        self._parked.set()
        assert self._resumed.wait(LIMIT_S)

    def run_turn(self) -> None:
        if not self.has_ended:
            self._parked.clear()
            self._resumed.set()
            assert self._parked.wait(LIMIT_S)

    def join(self, timeout: float | None = None) -> None:
        self.run_turn()
        if self.has_ended:
            super().join(timeout)


class SimulatedGateway:
    """The machine, and the agent that runs on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-"))
        self.now, self.uptime = BEGIN, 0.0
        self.servers: list[FakeOpenvpn] = []
        self.threads: list[TurnThread] = []
        self.busy: set[int] = set()
        self.tables: dict[tuple[str, str], Any] = {}
        self.effects, self.kill_at, self.is_dead = 0, 0, False
        self.disk_is_full, self.refused_effect = False, 0
        self.boots = 0
        self.api = FakeElementApi()
        self._stack = ExitStack()
        self._patch()
        self.boot()

    # The machine.

    def boot(self) -> None:
        self.boots += 1
        (self.folder / "boot_id").write_text(f"boot-{self.boots}\n")
        self.kernel, self.filters = SimulatedKernel(self.act), SimulatedFilters(self.act)
        self.tables, self.servers, self.uptime = {}, [], 0.0
        self.uplinks = FakeUplinkRecords()

    def reboot(self) -> None:
        self.end_agent()
        for server in self.servers:
            server.end()
        self.boot()
        self.start_agent()

    def pass_time(self, seconds: float) -> None:
        self.uptime += seconds
        self.now += timedelta(seconds=seconds)
        for server in self.servers:
            server.pass_time(self.uptime)

    def run_threads(self, turns: int = 1) -> None:
        for _ in range(turns):
            for thread in list(self.threads):
                thread.run_turn()
        self.threads = [thread for thread in self.threads if not thread.has_ended]

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.run_threads()

    def act(self) -> None:
        """Count a side effect of the agent. Kill the agent, or refuse the effect, if a test requested it."""
        if self.is_dead:
            raise KilledError
        self.effects += 1
        if self.effects == self.kill_at:
            self.is_dead = True
            raise KilledError
        if self.effects == self.refused_effect:
            raise Refused("the kernel refused: Cannot allocate memory")

    # The agent.

    def start_agent(self) -> None:
        self.is_dead, self.kill_at, self.refused_effect = False, 0, 0
        settings = GuestSettings(self.folder, self.folder / "guests", "x86_64")
        guests = LocalGuests({}, settings, self.sleep, groups=FakeGroups())
        segments = SegmentInterfaces(self.kernel, self.uplinks)
        self.vpn = VpnGateway(
            self.kernel, self.folder / "vpn", SharedGrants(clock=lambda: self.now), limits=ConnectionLimits()
        )
        host = LocalHost(segments, guests, self.filters, vpn=self.vpn)
        self.reconciler = HostReconciler("h1", self.api, host, StopSignal(), ReconcileTiming(), receive=host.receive)
        host.take_over_access()

    def stop_agent(self) -> None:
        """Stop the agent as systemd does."""
        self.vpn.close()
        self.end_agent()

    def end_agent(self) -> None:
        """Kill the agent's process."""
        self.is_dead = True
        while self.threads:
            self.run_threads()
        for server in self.servers:
            server.forget_program()
            if server.state == "waiting":
                server.end()

    def reconcile(self) -> bool:
        """Reconcile once. Return whether the agent survived and confirmed the wanted document."""
        before = len(self.api.reports)
        try:
            self.reconciler.reconcile_once()
            self.run_threads()
        except KilledError:
            pass
        if self.is_dead:
            self.end_agent()
            self.start_agent()
            return False
        self.refused_effect = 0
        is_refused = any(kind == "error" for kind, _ in self.api.reports[before:])
        return self.api.document.confirmed_revision == self.api.document.revision and not is_refused

    def close(self) -> None:
        self.end_agent()
        self._stack.close()
        shutil.rmtree(self.folder)

    # The programs and the clock that the agent uses.

    def _patch(self) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.uptime, sleep=self.sleep)
        boot_id = self.folder / "boot_id"
        for module, values in {
            vpn_gateway: {
                "UnixManagementSocket": self._connect,
                "OpenvpnLaunch": lambda path: FakeLaunch(self, path),
                "kill_processes": self._kill,
                "list_own_processes": lambda: {server.pid for server in self.servers},
                "read_start_time": self._read_start,
                "reap": lambda _pid: None,
                "threading": SimpleNamespace(Thread=self._make_thread),
                "time": clock,
                "BOOT_ID": boot_id,
            },
            openvpn_processes: {"read_start_time": self._read_start, "BOOT_ID": boot_id},
            connection_limits: {"KernelTables": lambda: SimulatedTables(self)},
            device_control: {"time": clock},
            management_socket: {"time": clock},
        }.items():
            for name, value in values.items():
                self._stack.enter_context(patch.object(module, name, value))
        self._stack.enter_context(observe_files(self.folder / "vpn", self._change_file))

    def _change_file(self, *, grows: bool) -> None:
        self.act()
        if self.disk_is_full and grows:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _make_thread(self, **options: Any) -> TurnThread:
        self.threads.append(TurnThread(**options))
        return self.threads[-1]

    def _connect(
        self, path: Path, limit_s: float = 10.0, has_ended: Callable[[], bool] = lambda: False
    ) -> "SimulatedSocket":
        self.act()
        server = next((one for one in self.servers if one.socket == path and one.listens), None)
        if server is None or server.program is not None:
            if not has_ended():
                self.pass_time(limit_s)
            raise Unreachable(f"OpenVPN does not listen at {path}")
        return SimulatedSocket(self, server)

    def _kill(self, argument: str, pids: set[int]) -> None:
        self.act()
        for server in self.servers:
            if str(server.socket) == argument and server.pid in pids:
                server.end()

    def _read_start(self, pid: int) -> int | None:
        return next((pid for one in self.servers if one.pid == pid and one.is_alive), None)


class FakeLaunch:
    """Starts a process of `FakeOpenvpn` instead of OpenVPN. The class has the interface of `OpenvpnLaunch`."""

    def __init__(self, gateway: SimulatedGateway, path: Path) -> None:
        gateway.act()
        number = 1000 * gateway.boots + len(gateway.servers)
        self._gateway = gateway
        self.server = FakeOpenvpn(number, path, gateway.kernel, gateway.busy)
        gateway.servers.append(self.server)
        self.pid = number

    def configure(self, config: str) -> None:
        self._gateway.act()
        if self.server.is_alive:
            self.server.configure(config)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            raise Unreachable(f"{error}: {self.server.error}") from error

    def has_ended(self) -> bool:
        return not self.server.is_alive

    def close(self) -> None:
        """Close the pipes. A process without configuration ends."""
        if self.server.state == "waiting":
            self.server.end()


class SimulatedSocket:
    """The agent's connection with a server's management socket."""

    def __init__(self, gateway: SimulatedGateway, server: FakeOpenvpn) -> None:
        self._gateway, self._server = gateway, server
        self._parser, self._lines = MessageParser(), list[str]()
        server.program = self

    def receive_line(self, line: str) -> None:
        self._lines.append(line)

    def send(self, command: str) -> None:
        self._gateway.act()
        self._check()
        self._server.read_command(command, self._gateway.uptime)

    def receive(self, seconds: float) -> list[ManagementEvent]:
        thread = threading.current_thread()
        if isinstance(thread, TurnThread):
            thread.park()
        elif not self._lines:
            self._gateway.pass_time(seconds)
        if self._gateway.is_dead:
            raise KilledError
        lines, self._lines = self._lines, []
        if not lines:
            self._check()
        return [event for line in lines if (event := self._parser.feed(line)) is not None]

    def wake(self) -> None:
        """Do nothing: the test decides when a thread runs."""

    def close(self) -> None:
        if self._server.program is self:
            self._server.forget_program()

    def _check(self) -> None:
        if self._server.program is not self:
            raise Unreachable("OpenVPN closed the management socket")


@contextmanager
def observe_files(folder: Path, change: Callable[..., None]) -> Iterator[None]:
    """Call ``change`` before each change of a file below ``folder`` in the block."""

    def observed(function: Callable[..., Any], is_change: Callable[..., bool], *, grows: bool) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, str | Path) and Path(path).is_relative_to(folder) and is_change(*arguments, **options):
                change(grows=grows)
            return function(path, *arguments, **options)

        return call

    def creates(flags: int, *_: Any, **_options: Any) -> bool:
        return bool(flags & os.O_CREAT)

    def writes(mode: str = "r", *_: Any, **_options: Any) -> bool:
        return mode[0] != "r"

    def always(*_: Any, **_options: Any) -> bool:
        return True

    with (
        patch.object(os, "open", observed(os.open, creates, grows=True)),
        patch.object(io, "open", observed(io.open, writes, grows=True)),
        patch.object(os, "mkdir", observed(os.mkdir, always, grows=True)),
        patch.object(os, "rename", observed(os.rename, always, grows=False)),
        patch.object(os, "unlink", observed(os.unlink, always, grows=False)),
    ):
        yield
