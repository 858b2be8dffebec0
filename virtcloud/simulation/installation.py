"""The components of ``virtcloud up``: SBF as a program, its first topology and tokens, and the simulated agents."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec

from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.credentials import FileToken, write_token
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, ElementError, NotFound, ServiceUnreachable, VirtcloudError
from virtcloud.simulation import sites
from virtcloud.simulation.agents import SimulatedAgents
from virtcloud.simulation.folder import USERS, SimulationFolder

MODULE = "sbf_service.simulation"
LIBRARIES = ("sbf_service", "uvicorn", "sqlalchemy", "netmiko")
START_S = 60.0
STOP_S = 5.0
NEW_AGENTS_S = 3.0
"""Seconds between two readings of the topology's elements.

After each reading, the simulation starts agents for new hosts and gateways.
"""
TAIL_LINES = 8


@dataclass(frozen=True)
class SimulationOptions:
    """The address to listen on, the number of sites, and the seconds that an element takes for a change."""

    port: int = 8800
    site_count: int = 3
    change_s: float = 1.0
    host: str = "127.0.0.1"


@dataclass
class Simulation:
    """A running simulation."""

    url: str
    folder: SimulationFolder
    process: "subprocess.Popen[bytes]"
    agents: SimulatedAgents

    def client(self) -> SbfClient:
        """Return a client with the operator's token."""
        return SbfClient(self.url, token=FileToken(self.folder.operator_token))

    def wait(self, stop: threading.Event) -> None:
        """Until ``stop`` is set, start an agent for each new host or gateway, and write the list of all elements.

        Raise ElementError if SBF ends earlier.
        """
        with self.client() as sbf:
            while not stop.wait(NEW_AGENTS_S):
                if self.process.poll() is not None:
                    raise ElementError(f"SBF ended unexpectedly; the end of its log:{_tail(self.folder)}")
                with suppress(VirtcloudError):
                    start_agents(sbf, self.agents)


def check_libraries() -> None:
    """Raise BadInput if a library of SBF is missing. The message names the package to install."""
    for library in LIBRARIES:
        if find_spec(library) is None:
            raise BadInput(f"the command 'up' needs {library}; install it with: pip install 'virtcloud[sbf]'")


@contextmanager
def run_simulation(folder: SimulationFolder, options: SimulationOptions) -> Iterator[Simulation]:
    """Start SBF and the agents. Yield the simulation when SBF has the simulated sites. Finally stop SBF and the agents.

    Raise BadInput if the port is in use, or if SBF ends during its start. Raise ElementError if SBF does not answer
    within ``START_S`` seconds.
    """
    port = choose_port(options)
    process = _start_sbf(folder, options, port)
    url = f"http://{options.host}:{port}"
    agents = SimulatedAgents(url, folder, options.change_s)
    try:
        simulation = Simulation(url, folder, process, agents)
        _wait_for_sbf(simulation)
        with simulation.client() as sbf:
            furnish(sbf, folder, options.site_count)
            start_agents(sbf, agents)
        yield simulation
    finally:
        agents.stop()
        _stop_sbf(process)


def choose_port(options: SimulationOptions) -> int:
    """Return the port to listen on; for port 0, any free port. Raise BadInput if the port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            raise BadInput(
                f"port {options.port}: cannot listen on {options.host}: {error.strerror}. If another 'virtcloud up' or "
                f"an SBF runs there, stop it, or choose another port: virtcloud up --port {options.port % 65535 + 1}"
            ) from error
        return int(probe.getsockname()[1])


def _start_sbf(folder: SimulationFolder, options: SimulationOptions, port: int) -> "subprocess.Popen[bytes]":
    """Start SBF. SBF reads from a pipe of this process, so that SBF ends when this process ends."""
    argv = [sys.executable, "-P", "-m", MODULE, str(folder.path), "--listen", f"{options.host}:{port}"]
    with folder.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - a module of virtcloud
            [*argv, "--change-seconds", str(options.change_s)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops SBF
        )


def _wait_for_sbf(simulation: Simulation) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if simulation.process.poll() is not None:
            raise BadInput(f"SBF did not start; the end of its log:{_tail(simulation.folder)}")
        if time.monotonic() > deadline:
            raise ElementError(
                f"SBF did not answer within {START_S:g} s; the end of its log:{_tail(simulation.folder)}"
            )
        with suppress(ServiceUnreachable), simulation.client() as sbf:
            if simulation.folder.operator_token.exists():
                sbf.whoami()
                return
        time.sleep(0.1)


def _stop_sbf(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(folder: SimulationFolder) -> str:
    lines = folder.log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if folder.log.exists() else []
    return "".join(f"\n    {line}" for line in lines)


def furnish(sbf: SbfClient, folder: SimulationFolder, site_count: int) -> None:
    """Store the simulated sites, unless SBF has a topology of an earlier run. Create missing user tokens.

    The first start creates the tokens last. So if a token is missing, also set empty pools, which an interrupted start
    left.
    """
    try:
        sbf.topology()
    except NotFound:
        topology = sites.simulated_topology(site_count)
        folder.begin(topology)
        folder.disturb(sites.unreachable_switch(topology), "off")
        sbf.put_topology(topology, ANY_VERSION)
    if not all(folder.token_file(user).exists() for user in USERS):
        for site in (site.name for site in sbf.sites() if not site.pool):
            sbf.put_pool(site, Pool(vlans=sites.POOL))
    for user in USERS:
        _ensure_token(sbf, folder, user, Role.USER)


def start_agents(sbf: SbfClient, agents: SimulatedAgents) -> None:
    """Start an agent for each host and gateway without a running agent, and write ``elements.json``. Idempotent."""
    views = sbf.elements()
    agents.folder.write_elements({view.name: view.kind for view in views})
    elements = [view for view in views if view.kind in {ElementKind.HOST, ElementKind.GATEWAY}]
    for element in elements:  # before any agent starts, because running agents slow down this loop
        _ensure_token(sbf, agents.folder, element.name, Role.AGENT)
    for element in elements:
        agents.start(element.name, is_host=element.kind is ElementKind.HOST)


def _ensure_token(sbf: SbfClient, folder: SimulationFolder, name: str, role: Role) -> None:
    file = folder.token_file(name)
    if not file.exists():
        write_token(file, sbf.create_token(name, role).token)
