"""The folder of a simulation: SBF's database, tokens, simulated switches, and the files that cause events.

======================  ==========================================================================
file                    meaning
======================  ==========================================================================
``operator.token``      the token of the operator ``admin``; SBF creates it
``tokens/NAME.token``   the tokens of users and agents
``events/NAME.off``     while this file exists, the element does not answer
``events/NAME.drift``   when SBF next reads the switch, the switch loses the VLANs of a port
``events/NAME.restart`` when SBF next reads the switch, the switch loads its startup configuration
``elements.json``       the kind of each element of the topology
``cables.json``         the first topology; switches report its links as LLDP neighbours
``sbf.log``             SBF's log
======================  ==========================================================================
"""

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from virtcloud.client.credentials import replace_private_file
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

MARK: Final = "simulation.lock"
FOLDER_VARIABLE: Final = "VIRTCLOUD_SIMULATION"
USERS: Final = ("alice", "bob")


@dataclass(frozen=True)
class SimulationFolder:
    """The folder of a simulation at ``path``."""

    path: Path

    @property
    def operator_token(self) -> Path:
        """The file of the operator's token."""
        return self.path / "operator.token"

    @property
    def log(self) -> Path:
        """SBF's log."""
        return self.path / "sbf.log"

    def token_file(self, name: str) -> Path:
        """Return the file of a user's or agent's token."""
        return self.path / "tokens" / f"{name}.token"

    def begin(self, topology: Topology) -> None:
        """Write the first topology to ``cables.json``. Remove the events that an interrupted earlier start left."""
        shutil.rmtree(self.path / "events", ignore_errors=True)
        (self.path / "cables.json").write_text(topology.model_dump_json(), encoding="utf-8")

    def write_elements(self, kinds: Mapping[Name, ElementKind]) -> None:
        """Replace ``elements.json``. ``kinds`` are the elements of the topology with their kinds.

        Raise BadInput if the file cannot be written.
        """
        replace_private_file(self.path / "elements.json", json.dumps(kinds))

    def known_elements(self) -> tuple[list[str], list[str]]:
        """Return the names of the simulated switches, and the names of all hosts and gateways.

        After a change of the topology, the names can be outdated for a few seconds, until 'virtcloud up' records the
        change.
        """
        file = self.path / "elements.json"
        kinds = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        switches = sorted(name for name, kind in kinds.items() if kind == ElementKind.SWITCH)
        return switches, sorted({*kinds} - {*switches})

    def is_off(self, element: str) -> bool:
        """Return whether an element is switched off."""
        return self._event(element, "off").exists()

    def disturb(self, element: str, event: str) -> None:
        """Create the file that requests an event (``off``, ``drift`` or ``restart``). Idempotent."""
        file = self._event(element, event)
        file.parent.mkdir(exist_ok=True)
        file.touch()

    def mend(self, element: str) -> None:
        """Switch an element on again. Idempotent."""
        self._event(element, "off").unlink(missing_ok=True)

    def _event(self, element: str, event: str) -> Path:
        return self.path / "events" / f"{element}.{event}"


@contextmanager
def open_folder(kept: Path | None) -> Iterator[SimulationFolder]:
    """Yield the folder ``kept``. If ``kept`` is None, yield a new folder, which is removed at the end of the block.

    Raise BadInput for a folder that has other content, is used by another simulation, or cannot be written.
    """
    if kept is not None:
        _check_content(kept)
        with _hold_lock(kept):
            yield SimulationFolder(kept)
        return
    path = Path(tempfile.mkdtemp(prefix="virtcloud-up-"))
    try:
        with _hold_lock(path):
            yield SimulationFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def find_folder(path: Path) -> SimulationFolder:
    """Return the folder of a simulation. Raise BadInput for a folder that no simulation has used."""
    if not (path / MARK).exists():
        raise BadInput(
            f"{path}: expected the folder of a running 'virtcloud up', found no {MARK}: copy the lines that "
            "'virtcloud up' prints, or name the folder with --folder"
        )
    return SimulationFolder(path)


def _check_content(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadInput(f"--keep {path}: expected a folder that can be written: {error.strerror}") from error
    if names and MARK not in names:
        raise BadInput(
            f"--keep {path}: expected an empty folder or the folder of an earlier 'virtcloud up', found "
            f"{', '.join(sorted(names)[:3])}: choose another folder"
        )


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    try:
        file = (path / MARK).open("a", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: expected a folder that can be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(
                f"--keep {path}: another 'virtcloud up' uses this folder: stop it (Ctrl-C in its terminal), or choose "
                "another folder"
            ) from error
        yield
