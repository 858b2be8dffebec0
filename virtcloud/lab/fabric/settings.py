"""What a fabric process is told when it starts."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FabricSettings:
    """Where things are. ``listen`` is ``unix:PATH`` or ``tcp:ADDRESS:PORT``; ``relay`` is ADDRESS:PORT or nothing.

    ``machine`` says that this process is the first one of a User-mode Linux kernel, ``kernel`` is the command that
    boots such a kernel (station only), with ``preload`` as a library to load into it.
    """

    state: str
    plan: str
    events: str
    token: str
    listen: str
    relay: str = ""
    machine: bool = False
    kept: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    preload: str = ""


def write(settings: FabricSettings, path: Path) -> None:
    """Write settings to a file that only root reads: they hold the token."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(asdict(settings)))


def read(path: Path) -> FabricSettings:
    """Read what :func:`write` wrote."""
    data = json.loads(path.read_text())
    return FabricSettings(**{**data, "kept": tuple(data["kept"]), "kernel": tuple(data["kernel"])})
