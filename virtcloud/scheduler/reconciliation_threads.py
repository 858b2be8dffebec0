"""Composition root: creates the objects of reconciliation from the settings and runs them in threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from virtcloud.client.sbf import SbfClient
from virtcloud.scheduler.command import CommandRunner, build_runner, find_command_folder
from virtcloud.scheduler.decision import GraceRules
from virtcloud.scheduler.job_confirmation import OLD_SBF_PAUSE_S, ConfirmingScheduler, confirm_until_stopped
from virtcloud.scheduler.job_reconciler import Clocks, JobReconciler
from virtcloud.scheduler.openpbs_adapter import OpenPbsScheduler
from virtcloud.scheduler.protocols import Log, Scheduler
from virtcloud.scheduler.scheduler_nodes import NodeWatch
from virtcloud.scheduler.scheduler_settings import SchedulerSettings
from virtcloud.scheduler.status import SchedulerStatus, write_status
from virtcloud.scheduler.torque_adapter import TorqueScheduler

SCHEDULERS: dict[str, Callable[[CommandRunner], Scheduler]] = {"openpbs": OpenPbsScheduler, "torque": TorqueScheduler}
StartThread = Callable[[str, Callable[[Callable[[], None]], None], float], threading.Thread]
"""A function that starts a thread. Its arguments are the thread's name, a function to run, and the maximum time in
seconds between two progress reports. The function to run receives a function that reports progress."""
COMMANDS_PER_ROUND = 20
"""A thread counts as hanging if it reports no progress for longer than its longest pause plus the time limits of this
number of commands."""
CONFIRMING_SCHEDULERS: dict[str, Callable[[CommandRunner], ConfirmingScheduler]] = {"torque": TorqueScheduler}
"""Batch systems that must confirm jobs to SBF, because their hosts, and not their servers, request the clusters."""
STOP_WAIT_S = 2.0
"""Maximum time in seconds that :func:`run_reconciliation` waits for each thread to end.

A thread that is still in a round after this time ends with the process, because the threads are daemon threads.
"""


@contextmanager
def run_reconciliation(
    keys: SchedulerSettings, sbf: SbfClient, address: str, log: Log, start: StartThread
) -> Iterator[None]:
    """Run reconciliation while this context is open, in threads that ``start`` starts. ``address`` is SBF's address."""
    stop = threading.Event()
    patience = keys.interval + COMMANDS_PER_ROUND * keys.timeout
    threads = [start("scheduler", lambda beat: _reconcile_until_stopped(keys, sbf, address, log, stop, beat), patience)]
    if keys.kind in CONFIRMING_SCHEDULERS:
        scheduler = CONFIRMING_SCHEDULERS[keys.kind](_build_runner(keys))
        confirm = partial(confirm_until_stopped, scheduler, sbf, keys.hosts, log, stop)
        threads.append(start("confirmation", confirm, OLD_SBF_PAUSE_S + COMMANDS_PER_ROUND * keys.timeout))
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(STOP_WAIT_S)


def _reconcile_until_stopped(  # noqa: PLR0913, PLR0917 - its collaborators
    keys: SchedulerSettings, sbf: SbfClient, address: str, log: Log, stop: threading.Event, beat: Callable[[], None]
) -> None:
    reconciler = build_reconciler(keys, sbf, log)
    log.info("reconciling", scheduler=keys.kind, sbf=address)
    while True:
        beat()
        report = reconciler.run_round(beat)
        status = SchedulerStatus(kind=keys.kind, sbf=address, interval_s=keys.interval, report=report)
        try:
            write_status(keys.status, status)
        except OSError as error:
            log.warning("status_not_written", file=keys.status, error=error.strerror)
        if stop.wait(keys.interval):
            return


def _build_runner(keys: SchedulerSettings) -> CommandRunner:
    return build_runner(keys.commands or find_command_folder(), keys.timeout)


def build_reconciler(keys: SchedulerSettings, sbf: SbfClient, log: Log) -> JobReconciler:
    """Return the reconciler that the settings describe."""
    scheduler = SCHEDULERS[keys.kind](_build_runner(keys))
    clocks = Clocks()
    watch = NodeWatch(scheduler, sbf, keys, clocks.monotonic)
    rules = GraceRules(keys.looks, keys.grace, keys.grace_empty, keys.interval)
    return JobReconciler(scheduler, sbf, rules, log, clocks, watch.alerts)
