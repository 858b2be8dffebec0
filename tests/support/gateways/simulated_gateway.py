"""A gateway whose kernel, disk, clock and OpenVPN servers are simulated, and an agent that can be killed at any effect.

The agent is the real agent, with the real threads of `DeviceControl`. A thread runs only while the test's thread waits
for it, so each sequence of calls always has the same result.
"""

import errno
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from support.fake_machine import FakeElementApi, FakeGroups, FakeUplinkRecords
from support.gateways.fake_openvpn import FakeOpenvpn
from support.gateways.simulated_machine import (
    KilledError,
    SimulatedFilters,
    SimulatedKernel,
    SimulatedTables,
    TurnThread,
    observe_files,
)
from virtcloud.agent.gateway import (
    connection_limits,
    device_control,
    management_socket,
    openvpn_processes,
    server_takeover,
    vpn_gateway,
)
from virtcloud.agent.gateway.connection_limits import ConnectionLimits
from virtcloud.agent.gateway.management_messages import ManagementEvent, MessageParser
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.agent.gateway.vpn_gateway import VpnGateway
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import Refused, Unreachable

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedGateway:
    """The machine, and the agent that runs on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-"))
        self.now, self.uptime = BEGIN, 0.0
        self.servers: list[FakeOpenvpn] = []
        self.threads: list[TurnThread] = []
        self.busy: set[int] = set()
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
        self.tables, self.servers, self.uptime = SimulatedTables(self.act), [], 0.0
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
        """Count a side effect of the agent. Kill the agent, or refuse the effect, if a test planned this."""
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

    @property
    def has_latest_document(self) -> bool:
        """Whether the agent has received the latest wanted document."""
        return self.reconciler._last_revision == self.api.document.revision

    def stop_agent(self) -> None:
        """Stop the agent as systemd does."""
        self.vpn.close()
        self.end_agent()

    def end_agent(self) -> None:
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
        patches: dict[ModuleType, dict[str, object]] = {
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
            connection_limits: {"KernelTables": lambda: self.tables},
            device_control: {"time": clock},
            management_socket: {"time": clock},
            server_takeover: {"time": clock},
        }
        for module, values in patches.items():
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
