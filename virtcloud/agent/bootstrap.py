"""The agent, put together and run. ``main`` is what a supervisor calls; importing this module is quick.

SBF, as the agent's settings say where it is and who the agent is to it.

The socket and all behind it, put together for the length of an agent's life.
"""

import fcntl
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

from virtcloud.agent import log
from virtcloud.agent.job_access.job_files import JobFiles, RelayProvider
from virtcloud.agent.job_access.job_folder import FileSystemMounts, TmpfsMounts
from virtcloud.agent.job_socket.job_records import JobRecordStore
from virtcloud.agent.job_socket.listener import CallerPolicy, SocketListener
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.agent.job_socket.request_handler import HandlerDependencies, RequestHandler
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.start_barrier import JobClusterApi, OpenGuestProber, StartBarrier
from virtcloud.agent.network.address_probe import AddressProbe
from virtcloud.agent.reconciler import MachineReconciler, ReconcileTiming
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.agent.supervision import (
    AgentFailed,
    StartSupervisedThread,
    StopRequested,
    StopSignal,
    ThreadSupervisor,
    start_unsupervised,
)
from virtcloud.client.connection import TlsTrust
from virtcloud.client.credentials import token_source
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import BadInput, Unauthenticated, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.scheduler.reconciliation_threads import run_reconciliation

STOP_TIMEOUT_S = 1.0
"""So long a thread may take to end; then the process ends without it."""


@dataclass(frozen=True, slots=True)
class JobSocketAdapters:
    """How this machine reaches guests: a way for jobs' scripts, an ear to hear who is up; where jobs' files are."""

    way: RelayProvider
    ear: OpenGuestProber = AddressProbe
    volumes: FileSystemMounts = field(default_factory=TmpfsMounts)


@contextmanager
def serve_job_socket(  # noqa: PLR0913, PLR0917 - what it is put together from
    element: Name,
    settings: AgentSettings,
    sbf: JobClusterApi,
    wake: Callable[[], None],
    reach: JobSocketAdapters,
    start: StartSupervisedThread = start_unsupervised,
) -> Iterator[None]:
    """Answer on the socket; raise BadInput when it cannot be opened.

    ``wake`` ends the converger's pause; ``start`` starts a thread.
    """
    ledger = JobRecordStore(settings.state / "jobs")
    places = ScriptAccess(JobFiles(settings.jobs, reach.way, reach.volumes), ledger)
    removals = JobRemovals(element, sbf, ledger, places)
    ends = threading.Event()
    office = HandlerDependencies(
        ledger,
        places,
        removals,
        lambda: StartBarrier(element, sbf, reach.ear, ends.wait),
        wake,
        settings.timing.job_grace,
    )
    desk = RequestHandler(office)
    server = SocketListener(settings.socket, CallerPolicy(frozenset(settings.socket_uids), ledger), desk.answer)
    removals.start(start)
    server.start(start)
    try:
        yield
    finally:
        ends.set()
        desk.close()
        server.stop(STOP_TIMEOUT_S)
        removals.stop(STOP_TIMEOUT_S)


def sbf_client(settings: AgentSettings, token_file: Path | None, timeout: float = 10.0) -> SbfClient:
    """Make a client. A token's file that others can read is refused now; one that is still to come is waited for."""
    token = token_source(settings.sbf, file=token_file)
    with suppress(Unauthenticated):
        token()
    return SbfClient(settings.sbf, timeout, token=token, trust=TlsTrust(settings.ca_file, settings.certificate))


JOB_SOCKET_SBF_TIMEOUT_S = 3.0
"""A hook waits: SBF has no more than this to answer, and is asked again."""
MISSING_EXTRA = (
    "the agent needs what a plain client does not: {missing}; install it with: pip install 'virtcloud[agent]'"
)
IDLE_INTERVAL_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """Run with ``--config FILE``; return the exit code: 0 asked to stop, 1 a part of it failed, 2 wrong settings."""
    parser = ArgumentParser(prog="virtcloud agent")
    parser.add_argument("--config", type=Path, required=True)
    try:
        run_agent(parser.parse_args(arguments).config)
    except VirtcloudError as error:
        sys.stderr.write(f"virtcloud: {error}\n")
        return 2 if isinstance(error, BadInput) else 1
    return 0


def run_agent(path: Path) -> None:
    """Converge until SIGTERM or SIGINT, then return; the machine stays as it is.

    Raise :class:`BadInput` for wrong settings, :class:`AgentFailed` when a thread ended or hangs.
    """
    stop = StopSignal()
    life = ThreadSupervisor(stop)
    stop.on_signals()
    settings = read_settings(path)
    log.to_stderr()
    with _lock_state_folder(settings.state), _scheduler_role(settings, life):
        if settings.element is None:
            _wait_for_stop(stop, life)
        else:
            _reconcile(settings.element, settings, stop, life)
        life.ending()
    if stop.failure is not None:
        raise AgentFailed(f"the agent ends, since {stop.failure}; its supervisor starts it again")


def _reconcile(element: Name, settings: AgentSettings, stop: StopSignal, life: ThreadSupervisor) -> None:
    machines = _import_adapters().open_machine(settings, _pause(stop, life), life.progress)
    with (
        machines as machine,
        sbf_client(settings, settings.token_file) as sbf,
        sbf_client(settings, settings.token_file, JOB_SOCKET_SBF_TIMEOUT_S) as asked,
    ):
        converger = MachineReconciler(element, sbf, machine, stop, _timing(settings), progress=life.progress)
        with serve_job_socket(
            element,
            settings,
            asked,
            converger.wake,
            JobSocketAdapters(_import_adapters().make_job_relays(settings)),
            life.start,
        ):
            log.info("started", element=element, sbf=settings.sbf, socket=settings.socket)
            life.ready()
            converger.run()
            life.ending()


def _pause(stop: StopSignal, life: ThreadSupervisor) -> Callable[[float], None]:
    """Return what waits while guests end: each wait is progress, since their grace may be long."""

    def pause(seconds: float) -> None:
        stop.pause(seconds)
        life.progress()

    return pause


@contextmanager
def _scheduler_role(settings: AgentSettings, life: ThreadSupervisor) -> Iterator[None]:
    """Reconcile a scheduler's jobs beside all else, where the settings say so."""
    keys = settings.scheduler
    if keys is None:
        yield
        return
    with (
        sbf_client(settings, keys.token_file or settings.token_file) as sbf,
        run_reconciliation(keys, sbf, settings.sbf, log, life.start),
    ):
        yield


def _wait_for_stop(stop: StopSignal, life: ThreadSupervisor) -> None:
    life.ready()
    with suppress(StopRequested):
        while True:
            stop.pause(IDLE_INTERVAL_S)
            life.progress()


def _timing(settings: AgentSettings) -> ReconcileTiming:
    keys = settings.timing
    return ReconcileTiming(keys.check, keys.retry_first, keys.retry_most)


@contextmanager
def _lock_state_folder(state: Path) -> Iterator[None]:
    """Hold the state folder's lock: two agents on one machine would undo each other's work."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "agent.lock").open("w")
    except OSError as error:
        raise BadInput(
            f"cannot write to the state folder {state}: {error.strerror}; set 'state' in the settings"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"another agent runs with the state folder {state}; stop it first") from error
        yield


def _import_adapters() -> ModuleType:
    try:
        return import_module("virtcloud.agent.machine")
    except ImportError as error:
        raise BadInput(MISSING_EXTRA.format(missing=error.name)) from error
