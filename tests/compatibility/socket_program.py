"""A program that serves an agent's job socket with the code of the installed version of virtcloud.

Only the host is simulated (relays, mounts and the answers of guests). The three arguments are the address of SBF, the
name of the element, and one folder for both the socket and the agent's files. The program prints a line when the socket
listens, and ends when its standard input is closed.
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


class FakeRelays:
    """Replaces the relays of jobs. A relay is only a path."""

    def ensure(self, opening: Any, uid: int) -> Path:
        return self.socket_path(opening.key)

    def socket_path(self, key: str) -> Path:
        return Path(f"/way-of/{key}")

    def ensure_none(self, key: str) -> None:
        pass

    def is_lost(self, key: str) -> bool:
        return False


class AnsweringGuests:
    """A prober that reports every guest as reachable."""

    def probe(self, addresses: Iterable[Any], _seconds: float) -> frozenset[Any]:
        return frozenset(addresses)

    ask = probe  # the name of ``probe`` in version 0.1


@contextmanager
def listen(_bridge: str) -> Iterator[AnsweringGuests]:
    yield AnsweringGuests()


@dataclass
class FakeMounts:
    """Replaces mounts. A folder counts as mounted while its path is in ``mounted_paths``."""

    mounted_paths: set[Path] = field(default_factory=set)

    def mounted(self, path: Path) -> bool:
        return path in self.mounted_paths

    def mount(self, path: Path, _size: int, _files: int) -> None:
        self.mounted_paths.add(path)

    def unmount(self, path: Path) -> None:
        self.mounted_paths.remove(path)
        shutil.rmtree(path)
        path.mkdir()


url, element, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
given = {
    "element": element,
    "sbf": url,
    "state": folder / "state",
    "jobs": folder / "jobs",
    "socket": folder / "a.sock",
}
known = {one.name for one in fields(JobSocketAdapters)}
parts: dict[str, Any] = {"relays": FakeRelays(), "open_prober": listen, "mounts": FakeMounts()}
parts |= {"way": FakeRelays(), "ear": listen, "volumes": FakeMounts()}  # names in version 0.1
reach = JobSocketAdapters(**{key: value for key, value in parts.items() if key in known})
with serve_job_socket(Name(element), AgentSettings.model_validate(given), SbfClient(url), lambda: None, reach):
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    sys.stdin.read()
