"""The agent, put together and run. ``main`` is what a supervisor calls; importing this module is quick."""

import fcntl
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from virtcloud.agent import log
from virtcloud.agent.alive import AgentFailed, Life
from virtcloud.agent.local.opened import Reach, opened
from virtcloud.agent.loop import Converger, Timing
from virtcloud.agent.service import service
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.agent.stopping import Stop, Stopped
from virtcloud.model.errors import BadInput, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.scheduler.service import reconciling

SOON_S = 3.0
"""A hook waits: SBF has no more than this to answer, and is asked again."""
EXTRA = "the agent needs what a plain client does not: {missing}; install it with: pip install 'virtcloud[agent]'"
IDLE_S = 10.0


def main(arguments: Sequence[str]) -> int:
    """Run with ``--config FILE``; return the exit code: 0 asked to stop, 1 a part of it failed, 2 wrong settings."""
    parser = ArgumentParser(prog="virtcloud agent")
    parser.add_argument("--config", type=Path, required=True)
    try:
        run(parser.parse_args(arguments).config)
    except VirtcloudError as error:
        sys.stderr.write(f"virtcloud: {error}\n")
        return 2 if isinstance(error, BadInput) else 1
    return 0


def run(path: Path) -> None:
    """Converge until SIGTERM or SIGINT, then return; the machine stays as it is.

    Raise :class:`BadInput` for wrong settings, :class:`AgentFailed` when a thread ended or hangs.
    """
    stop = Stop()
    life = Life(stop)
    stop.on_signals()
    settings = read_settings(path)
    log.to_stderr()
    with _only_one(settings.state), _scheduler_role(settings, life):
        if settings.element is None:
            _idle(stop, life)
        else:
            _converge(settings.element, settings, stop, life)
        life.ending()
    if stop.failure is not None:
        raise AgentFailed(f"the agent ends, since {stop.failure}; its supervisor starts it again")


def _converge(element: Name, settings: AgentSettings, stop: Stop, life: Life) -> None:
    machines = _assembly().machine(settings, _pause(stop, life), life.progress)
    with (
        machines as machine,
        service(settings, settings.token_file) as sbf,
        service(settings, settings.token_file, SOON_S) as asked,
    ):
        converger = Converger(element, sbf, machine, stop, _timing(settings), progress=life.progress)
        with opened(element, settings, asked, converger.wake, Reach(_assembly().ways(settings)), life.start):
            log.info("started", element=element, sbf=settings.sbf, socket=settings.socket)
            life.ready()
            converger.run()
            life.ending()


def _pause(stop: Stop, life: Life) -> Callable[[float], None]:
    """Return what waits while guests end: each wait is progress, since their grace may be long."""

    def pause(seconds: float) -> None:
        stop.pause(seconds)
        life.progress()

    return pause


@contextmanager
def _scheduler_role(settings: AgentSettings, life: Life) -> Iterator[None]:
    """Reconcile a scheduler's jobs beside all else, where the settings say so."""
    keys = settings.scheduler
    if keys is None:
        yield
        return
    with (
        service(settings, keys.token_file or settings.token_file) as sbf,
        reconciling(keys, sbf, settings.sbf, log, life.start),
    ):
        yield


def _idle(stop: Stop, life: Life) -> None:
    life.ready()
    with suppress(Stopped):
        while True:
            stop.pause(IDLE_S)
            life.progress()


def _timing(settings: AgentSettings) -> Timing:
    keys = settings.timing
    return Timing(keys.check, keys.retry_first, keys.retry_most)


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
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


def _assembly() -> ModuleType:
    try:
        return import_module("virtcloud.agent.assembly")
    except ImportError as error:
        raise BadInput(EXTRA.format(missing=error.name)) from error
