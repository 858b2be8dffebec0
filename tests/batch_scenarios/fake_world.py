"""A real SBF with fake switches in memory, and real agents on fake hosts."""

import getpass
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from pydantic import SecretStr
from support.fake_machine import FakeMounts
from support.fake_machine.reconciler import FakeManagedHost
from support.sbf_fakes.world import FakeClock, World, three_sites

from batch_scenarios.stage import HostFault
from sbf_service.bootstrap import SbfService
from sbf_service.http.app import answer_settled_polls, create_app
from virtcloud.agent.bootstrap import JobSocketAdapters, serve_job_socket
from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.settings import AgentSettings
from virtcloud.agent.supervision import StopSignal
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.values import Name
from virtcloud.testing.fakepbs.fake_batch import FakeBatch

TIMING = {"connect_timeout": 1, "read_timeout": 1, "retry_first": 0.05, "retry_most": 0.2, "drain_deadline": 20}


class AnsweringGuests:
    """A prober that reports every guest as reachable."""

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        return frozenset(addresses)


class NoJobAccess:
    """Replaces the access of a job's script to the job's guests. Starts no relay."""

    def ensure(self, access: JobAccess, uid: int) -> Path:
        return self.socket_path(access.key)

    def socket_path(self, key: str) -> Path:
        return Path("/nonexistent")

    def ensure_none(self, key: str) -> None:
        """Do nothing."""

    def is_lost(self, key: str) -> bool:
        return False


def every_guest_answers(_bridge: str) -> AbstractContextManager[AnsweringGuests]:
    return nullcontext(AnsweringGuests())


@contextmanager
def listen_silently(path: Path) -> Iterator[None]:
    """While the context is open, listen on a socket, and never answer."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        try:
            yield
        finally:
            path.unlink()


@dataclass
class SbfProcess:
    """SBF on a local port, in a thread. A test can stop and restart SBF."""

    world: World
    port: int = 0
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None
    _service: SbfService | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start SBF on its database. SBF keeps its port after a restart."""
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._service = self.world.restarted()
        config = uvicorn.Config(
            answer_settled_polls(create_app(self._service)),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        assert self._service is not None
        self._server.should_exit = True
        self._service.change_feed.close()
        self._thread.join()


@dataclass
class FakeWorld:
    """SBF, the switches of three sites, and a fake host with an agent for each name in ``hosts``."""

    world: World
    serving: SbfProcess
    folder: Path
    hosts: Sequence[str]
    client: SbfClient
    machines: dict[str, FakeManagedHost]
    patience: float = 120.0
    outage: float = 3.0
    user: str = field(default_factory=getpass.getuser)
    """The owner of the jobs: a user that exists on this computer."""
    batch: FakeBatch | None = None
    begins: dict[str, AbstractContextManager[None]] = field(default_factory=dict)
    """For each host whose next ``execjob_begin`` fails: the context manager that causes the fault."""
    _agents: dict[str, ExitStack] = field(default_factory=dict)

    def left(self) -> str:
        switches = {name: switch.carried() for name, switch in self.world.switches.found.items()}
        remnants = [f"{name}: {ports}" for name, ports in switches.items() if ports]
        machines = self.machines.items()
        remnants += [f"{name}: {machine.observed}" for name, machine in machines if machine.observed != ObservedHost()]
        return "; ".join(remnants)

    @contextmanager
    def unreachable(self, switch: str) -> Iterator[None]:
        """Make a switch unreachable for SBF within the context.

        Other worlds also shorten the time limit of a cluster's start, which is always short in a fake world.
        """
        self.world.switches[switch].cut_off = True
        try:
            yield
        finally:
            self.world.switches[switch].cut_off = False

    def stop_sbf(self) -> None:
        self.serving.stop()

    def start_sbf(self) -> None:
        self.serving.start()

    def kill_mom(self, host: str) -> None:
        assert self.batch is not None
        self.batch.kill_host(host)

    def start_mom(self, host: str) -> None:
        assert self.batch is not None
        self.batch.start_host(host)

    @contextmanager
    def in_begin(self, host: str, fault: HostFault) -> Iterator[Callable[[], None]]:
        """Cause the fault at the next ``execjob_begin`` of the host. Yield a function that waits for the fault."""
        over = threading.Event()
        self.begins[host] = self._faulty(host, fault, over)
        try:
            yield lambda: self._await(over)
        finally:
            if host not in self._agents:
                self.start_agent(host)
            self.start_mom(host)

    @contextmanager
    def _faulty(self, host: str, fault: HostFault, over: threading.Event) -> Iterator[None]:
        """Cause the fault before or after the host's hook, which runs inside the context.

        ``MOM_DIES`` kills the MoM after the hook, before the MoM reports the result. Other faults stop the agent before
        the hook.
        """
        if fault is HostFault.MOM_DIES:
            yield
            self.kill_mom(host)
        else:
            self.stop_agent(host)
            with listen_silently(self.socket(host)) if fault is HostFault.AGENT_HANGS else nullcontext():
                yield
        over.set()

    def _await(self, event: threading.Event) -> None:
        assert event.wait(self.patience)

    def log(self, job: str) -> str:
        """Return "", because pytest shows all output."""
        return ""

    def socket(self, host: str) -> Path:
        return self.folder / f"{host}.sock"

    def start_agent(self, host: str) -> None:
        stack = ExitStack()
        self._agents[host] = stack
        stack.enter_context(self._agent(host))

    def stop_agent(self, host: str) -> None:
        """Stop a host's agent. Guests and interfaces of the host stay."""
        self._agents.pop(host).close()

    @contextmanager
    def _agent(self, host: str) -> Iterator[None]:
        token = self.world.token(Role.AGENT, host)
        settings = AgentSettings.model_validate(
            {
                "element": host,
                "sbf": self.serving.url,
                "state": self.folder / host,
                "jobs": self.folder / host / "places",
                "socket": self.socket(host),
                "socket_uids": (os.getuid(),),
            }
        )
        stop = StopSignal()
        with SbfClient(self.serving.url, token=lambda: SecretStr(token)) as sbf:
            timing = ReconcileTiming(0.5, 0.05, 0.2)
            converger = HostReconciler(Name(host), sbf, self.machines[host], stop, timing)
            thread = threading.Thread(target=converger.run, name=f"agent {host}")
            thread.start()
            try:
                with serve_job_socket(
                    Name(host),
                    settings,
                    sbf,
                    converger.wake,
                    JobSocketAdapters(NoJobAccess(), every_guest_answers, FakeMounts()),
                ):
                    yield
            finally:
                stop.requested = True
                thread.join()


@contextmanager
def fake_world(folder: Path, hosts: Sequence[str]) -> Iterator[FakeWorld]:
    clock = FakeClock(stands=False)
    world = World(f"sqlite:///{folder / 'sbf.db'}", timing=TIMING, clock=clock)
    world.furnish(topology=three_sites())
    with ExitStack() as stack:
        serving = SbfProcess(world)
        serving.start()
        stack.callback(serving.stop)
        token = world.token(Role.OPERATOR, "operator")
        client = stack.enter_context(SbfClient(serving.url, 60, token=lambda: SecretStr(token)))
        fake = FakeWorld(world, serving, folder, hosts, client, {host: FakeManagedHost() for host in hosts})
        for host in hosts:
            fake.start_agent(host)
            stack.callback(fake.stop_agent, host)
        yield fake
