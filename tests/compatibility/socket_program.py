"""The job socket of an agent of the installed version of virtcloud. Only the host is simulated.

Arguments: the address of SBF, the name of the element, a folder. The program prints a line when it listens. The program
ends when its input is closed.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from virtcloud.agent.settings import AgentSettings
from virtcloud.client import SbfClient
from virtcloud.model.values import Name

try:
    from virtcloud.agent.bootstrap import JobSocketAdapters, serve_job_socket
except ImportError:  # version 0.1
    from virtcloud.agent.local.opened import Reach as JobSocketAdapters
    from virtcloud.agent.local.opened import opened as serve_job_socket


class Way:
    """The relays of a job. Each relay consists only of a path."""

    def ensure(self, opening: Any, uid: int) -> Path:  # noqa: ANN401 - the type differs between versions
        return Path(f"/way-of/{opening.key}/{uid}")

    def ensure_none(self, key: str) -> None:
        pass


class Ear:
    """A prober that reports every guest as reachable."""

    def probe(self, addresses: Iterable[Any], _seconds: float) -> frozenset[Any]:
        return frozenset(addresses)

    ask = probe  # the name of ``probe`` in version 0.1


@contextmanager
def listen(_bridge: str) -> Iterator[Ear]:
    """Yield a prober for a bridge."""
    yield Ear()


@dataclass
class Volumes:
    """Folders that are treated as mounted file systems."""

    places: set[Path] = field(default_factory=set)

    def mounted(self, place: Path) -> bool:
        return place in self.places

    def mount(self, place: Path, _size: int, _files: int) -> None:
        self.places.add(place)

    def unmount(self, place: Path) -> None:
        self.places.remove(place)
        shutil.rmtree(place)
        place.mkdir()


url, element, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
given = {
    "element": element,
    "sbf": url,
    "state": folder / "state",
    "jobs": folder / "jobs",
    "socket": folder / "a.sock",
}
known = {one.name for one in fields(JobSocketAdapters)}
parts: dict[str, Any] = {"relays": Way(), "open_prober": listen, "mounts": Volumes()}
parts |= {"way": Way(), "ear": listen, "volumes": Volumes()}  # names in version 0.1
reach = JobSocketAdapters(**{key: value for key, value in parts.items() if key in known})
with serve_job_socket(Name(element), AgentSettings.model_validate(given), SbfClient(url), lambda: None, reach):
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    sys.stdin.read()
