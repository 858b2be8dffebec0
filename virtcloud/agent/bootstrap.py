"""The composition root of the agent.

Importing this module imports neither pyroute2 nor libvirt; `virtcloud.agent.host_bootstrap` imports both.
"""

import fcntl
import os
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from virtcloud.agent import log
from virtcloud.agent.capacity import CapacityReporter, read_capacity
from virtcloud.agent.gateway.connection_reports import ConnectionReporter
from virtcloud.agent.gateway.outside_links import TABLE
from virtcloud.agent.gateway.outside_reports import DestinationUseReporter
from virtcloud.agent.guest_access.session_listener import SessionListener
from virtcloud.agent.host_boot import HostBoot
from virtcloud.agent.job_access.job_files import JobFiles, RelayProvider
from virtcloud.agent.job_access.job_folder import FileSystemMounts, TmpfsMounts
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.listener import CallerPolicy, SocketListener
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.agent.job_socket.request_handler import HandlerDependencies, RequestHandler
from virtcloud.agent.job_socket.script_access import ScriptAccess
from virtcloud.agent.job_socket.start_barrier import JobClusterApi, StartBarrier
from virtcloud.agent.network.address_probe import AddressProbe, OpenProber
from virtcloud.agent.network.table_monitor import TableMonitor
from virtcloud.agent.open_polls import OpenPoll
from virtcloud.agent.own_memory import reduce_memory
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.agent.step_application import count_starts
from virtcloud.agent.supervision import (
    AgentFailed,
    StartSupervisedThread,
    StopRequested,
    StopSignal,
    ThreadSupervisor,
    start_unsupervised,
)
from virtcloud.agent.traffic.traffic_reports import TrafficReporter
from virtcloud.client.agent_client import AgentClient
from virtcloud.client.credentials import TokenSource, token_source
from virtcloud.client.http_clients import TlsTrust
from virtcloud.model.errors import BadInput, Unauthenticated, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.otlp_tracing import tracing

JOB_SOCKET_SBF_TIMEOUT_S = 3.0
"""Time limit in seconds of a call to SBF for the job socket. The limit is short, because a hook of the batch system may
wait for the result.
"""
MISSING_EXTRA = "the agent needs {missing}, which is not installed; install it with: pip install 'virtcloud[agent]'"
IDLE_INTERVAL_S = 10.0
UMASK = 0o022
"""With this umask, other users can enter the agent's folders, but cannot change files in the folders. QEMU's user needs
the disks of guests, and a job's user needs the job socket. The umask of an administrator's shell may differ.
"""
STOP_TIMEOUT_S = 1.0
"""Longest wait in seconds for the end of each thread when the agent stops."""


def main(arguments: Sequence[str]) -> int:
    """Run the agent. Return the exit code: 0 after a request to stop, 2 after BadInput, 1 after another error."""
    parser = ArgumentParser(prog="virtcloud agent")
    parser.add_argument("--config", type=Path, required=True)
    try:
        run_agent(parser.parse_args(arguments).config)
    except VirtcloudError as error:
        sys.stderr.write(f"virtcloud: {error}\n")
        return 2 if isinstance(error, BadInput) else 1
    return 0


def run_agent(config: Path) -> None:
    """Reconcile until SIGTERM or SIGINT arrives. The segments and guests stay on the host.

    Raise BadInput for invalid settings or a missing library. Also raise BadInput if the state folder is not writable or
    is used by another agent. Raise AgentFailed if a thread has ended or hangs.
    """
    stop = StopSignal()
    supervisor = ThreadSupervisor(stop)
    stop.handle_signals()
    os.umask(UMASK)
    settings = read_settings(config)
    log.to_stderr()
    traces = tracing(settings.telemetry, "virtcloud-agent", settings.element or "scheduler", log.warning)
    with traces, _lock_state_folder(settings.state), _scheduler_role(settings, supervisor):
        if settings.element is None:
            _wait_for_stop(stop, supervisor)
        else:
            _reconcile(settings.element, settings, stop, supervisor)
        supervisor.report_stopping()
    if stop.failure is not None:
        raise AgentFailed(f"the agent ends because {stop.failure}; systemd restarts the agent")


def sbf_client(settings: AgentSettings, token_file: Path | None, timeout: float = 10.0) -> AgentClient:
    """Create a client of SBF. Raise BadInput if other users can read the token file."""
    return AgentClient(settings.sbf, timeout, token=_read_token(settings, token_file), trust=_find_trust(settings))


def _read_token(settings: AgentSettings, token_file: Path | None) -> TokenSource:
    token = token_source(settings.sbf, file=token_file)
    with suppress(Unauthenticated):
        token()
    return token


def _find_trust(settings: AgentSettings) -> TlsTrust:
    return TlsTrust(settings.ca_file, settings.certificate)


@dataclass(frozen=True, slots=True)
class JobSocketAdapters:
    """The adapters that the job socket uses: relays to guests, address probes, and mounts for jobs' folders."""

    relays: RelayProvider
    open_prober: OpenProber = AddressProbe
    mounts: FileSystemMounts = field(default_factory=TmpfsMounts)


@contextmanager
def serve_job_socket(  # noqa: PLR0913, PLR0917 - the dependencies
    element: Name,
    settings: AgentSettings,
    sbf: JobClusterApi,
    wake: Callable[[], None],
    adapters: JobSocketAdapters,
    start: StartSupervisedThread = start_unsupervised,
) -> Iterator[None]:
    """Serve the job socket within the block.

    Raise BadInput if the socket cannot be opened.
    """
    records = JobRecordStore(settings.state / "jobs")
    script_access = ScriptAccess(JobFiles(settings.jobs, adapters.relays, adapters.mounts), records, sbf.peers)
    removals = JobRemovals(element, sbf, records, script_access)
    stopping = threading.Event()
    handler = RequestHandler(
        HandlerDependencies(
            records,
            script_access,
            removals,
            lambda: StartBarrier(element, sbf, adapters.open_prober, stopping.wait),
            wake,
            settings.timing.job_grace,
        )
    )
    policy = CallerPolicy(frozenset(settings.socket_uids), records)
    listener = SocketListener(settings.socket, policy, handler.answer)
    removals.start(start)
    listener.start(start)
    try:
        yield
    finally:
        stopping.set()
        handler.close()
        listener.stop(STOP_TIMEOUT_S)
        removals.stop(STOP_TIMEOUT_S)


def _make_reconciler(  # noqa: PLR0913, PLR0917 - the dependencies
    element: Name,
    settings: AgentSettings,
    sbf: AgentClient,
    host: Any,  # noqa: ANN401 - the module of the host's adapters is imported at run time
    stop: StopSignal,
    progress: Callable[[], object],
) -> HostReconciler:
    timing = ReconcileTiming(settings.timing.check, settings.timing.retry_first, settings.timing.retry_most)
    return HostReconciler(
        element,
        OpenPoll(sbf),
        host,
        stop,
        timing,
        progress=progress,
        report_capacity=CapacityReporter(element, sbf, partial(read_capacity, settings.images)).report,
        starts_at_once=count_starts(settings.guests.starts_per_processor),
        boot=HostBoot(settings.state / "boot"),
        receive=host.receive,
    )


def _reconcile(element: Name, settings: AgentSettings, stop: StopSignal, supervisor: ThreadSupervisor) -> None:
    adapters = _import_adapters()
    with (
        sbf_client(settings, settings.token_file) as sbf,
        adapters.open_host(
            settings,
            _make_pause(stop, supervisor),
            supervisor.report_progress,
            cache := adapters.make_image_cache(settings, sbf.download_image),
        ) as host,
    ):
        reconciler = _make_reconciler(element, settings, sbf, host, stop, supervisor.report_progress)
        cache.wake = reconciler.wake
        reporter = ConnectionReporter(element, sbf, host.vpn_connections, host.ssh_connections)
        host.notice_connection_changes(reporter.notice_change)
        use_reporter = DestinationUseReporter(element, sbf, host.destination_uses)
        traffic = TrafficReporter(element, sbf)
        host.interfaces_read = traffic.notice
        monitor = TableMonitor(TABLE[1], host.restore_outside_filter)
        relays = adapters.make_job_relays(settings)
        connect = adapters.make_guest_connector(element, settings, host, relays, sbf)
        sessions = SessionListener(element, sbf, connect, adapters.open_bridge)
        socket_adapters = JobSocketAdapters(relays)
        reduce_memory()
        job_sbf = sbf.with_timeout(JOB_SOCKET_SBF_TIMEOUT_S)
        with serve_job_socket(element, settings, job_sbf, reconciler.wake, socket_adapters, supervisor.start):
            host.fqdns.changed = use_reporter.notice_change
            threads = sessions, reporter, use_reporter, traffic, monitor, host.fqdns
            for thread in threads:
                thread.start(supervisor.start)
            log.info("started", element=element, sbf=settings.sbf, socket=settings.socket)
            supervisor.report_ready()
            host.take_over_access()
            reconciler.run()
            supervisor.report_stopping()
            for thread in threads:
                thread.stop()


def _make_pause(stop: StopSignal, supervisor: ThreadSupervisor) -> Callable[[float], None]:
    def pause(seconds: float) -> None:
        stop.pause(seconds)
        supervisor.report_progress()

    return pause


@contextmanager
def _scheduler_role(settings: AgentSettings, supervisor: ThreadSupervisor) -> Iterator[None]:
    scheduler = settings.scheduler
    if scheduler is None:
        yield
        return
    # Few hosts need these modules.
    from virtcloud.client.sbf import SbfClient  # noqa: PLC0415
    from virtcloud.scheduler.reconciliation_threads import run_reconciliation  # noqa: PLC0415

    token = _read_token(settings, scheduler.token_file or settings.token_file)
    with (
        SbfClient(settings.sbf, token=token, trust=_find_trust(settings)) as sbf,
        run_reconciliation(scheduler, sbf, settings.sbf, log, supervisor.start),
    ):
        yield


def _wait_for_stop(stop: StopSignal, supervisor: ThreadSupervisor) -> None:
    supervisor.report_ready()
    with suppress(StopRequested):
        while True:
            stop.pause(IDLE_INTERVAL_S)
            supervisor.report_progress()


@contextmanager
def _lock_state_folder(state: Path) -> Iterator[None]:
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "agent.lock").open("w")
    except OSError as error:
        raise BadInput(
            f"cannot write to the state folder {state}: {error.strerror}; set 'state' in the agent's settings"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"another agent uses the state folder {state}; stop the other agent first") from error
        yield


def _import_adapters() -> ModuleType:
    try:
        return import_module("virtcloud.agent.host_bootstrap")
    except ImportError as error:
        raise BadInput(MISSING_EXTRA.format(missing=error.name)) from error
