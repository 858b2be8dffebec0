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
from virtcloud.agent.loop import Converger, Timing
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.agent.stopping import Stop
from virtcloud.client import SbfClient
from virtcloud.connection import Trust
from virtcloud.credentials import token_source
from virtcloud.model.errors import BadInput, Unauthenticated, VirtcloudError

EXTRA = "the agent needs what a plain client does not: {missing}; install it with: pip install 'virtcloud[agent]'"


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
    machines = _assembly().machine(settings, stop.pause)
    with _only_one(settings.state), machines as machine, _service(settings) as service:
        log.info("started", element=settings.element, sbf=settings.sbf)
        Converger(settings.element, service, machine, stop, _timing(settings)).run()


def _service(settings: AgentSettings) -> SbfClient:
    """Make the client. A token's file that others can read is refused now; one that is still to come is waited for."""
    token = token_source(settings.sbf, file=settings.token_file)
    with suppress(Unauthenticated):
        token()
    return SbfClient(settings.sbf, token=token, trust=Trust(settings.ca_file, settings.certificate))


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
