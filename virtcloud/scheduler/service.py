"""The service: the parts put together as the settings say, going round in a thread of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from virtcloud.client import SbfClient
from virtcloud.scheduler.command import Run, folder_of_commands, runner
from virtcloud.scheduler.confirming import OLD_SBF_S, Answers, confirm_always
from virtcloud.scheduler.decide import Rules
from virtcloud.scheduler.node_watch import NodeWatch
from virtcloud.scheduler.openpbs import OpenPbs
from virtcloud.scheduler.ports import Log, Scheduler
from virtcloud.scheduler.reconciler import Clocks, Reconciler
from virtcloud.scheduler.settings import SchedulerKeys
from virtcloud.scheduler.status import SchedulerStatus, write_status
from virtcloud.scheduler.torque import Torque

KINDS: dict[str, Callable[[Run], Scheduler]] = {"openpbs": OpenPbs, "torque": Torque}
Start = Callable[[str, Callable[[Callable[[], None]], None], float], threading.Thread]
"""Start a thread: its name, its work (which gets what reports progress), and the seconds for one piece of work."""
COMMANDS = 20
"""A look that takes as long as so many commands of the scheduler hangs."""
ANSWERING: dict[str, Callable[[Run], Answers]] = {"torque": Torque}
"""Whose hosts ask for their jobs' clusters themselves."""
ENDING_S = 2.0
"""So long the end of the service waits for a look that is under way; what it does may be repeated."""


@contextmanager
def reconciling(keys: SchedulerKeys, sbf: SbfClient, address: str, log: Log, start: Start) -> Iterator[None]:
    """Reconcile, in a thread that ``start`` starts, as long as this context is open; ``address`` is SBF's."""
    stop = threading.Event()
    patience = keys.interval + COMMANDS * keys.timeout
    threads = [start("scheduler", lambda beat: _run(keys, sbf, address, log, stop, beat), patience)]
    if keys.kind in ANSWERING:
        answers = ANSWERING[keys.kind](_commands(keys))
        answering = partial(confirm_always, answers, sbf, keys.hosts, log, stop)
        threads.append(start("answers", answering, OLD_SBF_S + COMMANDS * keys.timeout))
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(ENDING_S)


def _run(  # noqa: PLR0913, PLR0917 - what it works with
    keys: SchedulerKeys, sbf: SbfClient, address: str, log: Log, stop: threading.Event, beat: Callable[[], None]
) -> None:
    rounds = make(keys, sbf, log)
    log.info("reconciling", scheduler=keys.kind, sbf=address)
    while True:
        beat()
        report = rounds.round()
        status = SchedulerStatus(kind=keys.kind, sbf=address, interval_s=keys.interval, report=report)
        try:
            write_status(keys.status, status)
        except OSError as error:
            log.warning("status_not_written", file=keys.status, error=error.strerror)
        if stop.wait(keys.interval):
            return


def _commands(keys: SchedulerKeys) -> Run:
    return runner(keys.commands or folder_of_commands(), keys.timeout)


def make(keys: SchedulerKeys, sbf: SbfClient, log: Log) -> Reconciler:
    """Put the parts together."""
    scheduler = KINDS[keys.kind](_commands(keys))
    clocks = Clocks()
    watch = NodeWatch(scheduler, sbf, keys, clocks.monotonic)
    rules = Rules(keys.looks, keys.grace, keys.grace_empty)
    return Reconciler(scheduler, sbf, rules, log, clocks, watch.alerts)
