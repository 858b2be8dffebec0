"""The socket and all behind it, put together for the length of an agent's life."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from virtcloud.agent.alive import Start, unwatched
from virtcloud.agent.jobport_files import JobFiles, Way
from virtcloud.agent.local.callers import Callers
from virtcloud.agent.local.desk import Desk, Office
from virtcloud.agent.local.ear import Ear
from virtcloud.agent.local.ledger import Ledger
from virtcloud.agent.local.places import Places
from virtcloud.agent.local.removals import Removals
from virtcloud.agent.local.server import Server
from virtcloud.agent.local.watch import Clusters, MakeEar, Watch
from virtcloud.agent.settings import AgentSettings
from virtcloud.agent.volumes import Tmpfs, Volumes
from virtcloud.model.values import Name

PATIENCE_S = 1.0
"""So long a thread may take to end; then the process ends without it."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How this machine reaches guests: a way for jobs' scripts, an ear to hear who is up; where jobs' files are."""

    way: Way
    ear: MakeEar = Ear
    volumes: Volumes = field(default_factory=Tmpfs)


@contextmanager
def opened(  # noqa: PLR0913, PLR0917 - what it is put together from
    element: Name,
    settings: AgentSettings,
    sbf: Clusters,
    wake: Callable[[], None],
    reach: Reach,
    start: Start = unwatched,
) -> Iterator[None]:
    """Answer on the socket; raise BadInput when it cannot be opened.

    ``wake`` ends the converger's pause; ``start`` starts a thread.
    """
    ledger = Ledger(settings.state / "jobs")
    places = Places(JobFiles(settings.jobs, reach.way, reach.volumes), ledger)
    removals = Removals(element, sbf, ledger, places)
    ends = threading.Event()
    office = Office(
        ledger,
        places,
        removals,
        lambda: Watch(element, sbf, reach.ear, ends.wait),
        wake,
        settings.timing.job_grace,
    )
    desk = Desk(office)
    server = Server(settings.socket, Callers(frozenset(settings.socket_uids), ledger), desk.answer)
    removals.start(start)
    server.start(start)
    try:
        yield
    finally:
        ends.set()
        desk.close()
        server.stop(PATIENCE_S)
        removals.stop(PATIENCE_S)
