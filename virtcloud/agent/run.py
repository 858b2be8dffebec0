"""The agent, put together and run. ``main`` is what a supervisor calls; importing this module is quick."""

import fcntl
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from virtcloud.agent import log
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
IDLE_S = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Run with ``--config FILE``; gives the exit code: 0 asked to stop, 2 wrong settings."""
    parser = ArgumentParser(prog="virtcloud agent")
    parser.add_argument("--config", type=Path, required=True)
    try:
        run(parser.parse_args(arguments).config)
    except VirtcloudError as error:
        sys.stderr.write(f"virtcloud: {error}\n")
        return 2
    return 0


def run(path: Path) -> None:
    """Converge until SIGTERM or SIGINT, then return; the machine stays as it is. Raises :class:`BadInput`."""
    stop = Stop()
    stop.on_signals()
    settings = read_settings(path)
    log.to_stderr()
    with _only_one(settings.state), _scheduler_role(settings):
        if settings.element is None:
            _idle(stop)
        else:
            _converge(settings.element, settings, stop)


def _converge(element: Name, settings: AgentSettings, stop: Stop) -> None:
    machines = _assembly().machine(settings, stop.pause)
    with (
        machines as machine,
        service(settings, settings.token_file) as sbf,
        service(settings, settings.token_file, SOON_S) as asked,
    ):
        converger = Converger(element, sbf, machine, stop, _timing(settings))
        with opened(element, settings, asked, converger.wake, Reach(_assembly().ways(settings))):
            log.info("started", element=element, sbf=settings.sbf, socket=settings.socket)
            converger.run()


@contextmanager
def _scheduler_role(settings: AgentSettings) -> Iterator[None]:
    """Reconcile a scheduler's jobs beside all else, where the settings say so."""
    keys = settings.scheduler
    if keys is None:
        yield
        return
    with service(settings, keys.token_file or settings.token_file) as sbf, reconciling(keys, sbf, settings.sbf, log):
        yield


def _idle(stop: Stop) -> None:
    with suppress(Stopped):
        while True:
            stop.pause(IDLE_S)


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
