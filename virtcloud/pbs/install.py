"""Installs and removes the hooks: checks first, then changes only what differs."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from virtcloud.model.errors import BadInput, Conflict, Refused
from virtcloud.pbs import difference, qmgr
from virtcloud.pbs.difference import Change
from virtcloud.pbs.found import Found
from virtcloud.pbs.place import Place
from virtcloud.pbs.qmgr import Server
from virtcloud.pbs.wanted import MOM, RESOURCES, SERVER, Hook, hook

OLDEST = (3, 6)
Kind = Literal["server", "mom"]
KINDS: Mapping[Kind, str] = {"server": SERVER, "mom": MOM}
"""What settings files and the bundle call our hooks."""
Keys = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the hooks are made of: ``bundle`` gives a program, ``check`` refuses settings with :class:`BadInput`."""

    bundle: Callable[[Kind], str]
    check: Callable[[Kind, Keys], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """Settings by kind of hook; keys that are not named keep the value that is installed."""

    settings: Mapping[str, Keys] = field(default_factory=dict)


def plan(server: Server, place: Place, parts: Parts, wishes: Wishes) -> list[Change]:
    """Give what an installation would change. Raises before anything is changed, see :mod:`virtcloud.pbs.qmgr`."""
    found = qmgr.read(server)
    hooks = [wanted_hook(kind, parts, wishes, found) for kind in KINDS]
    changes = difference.install(RESOURCES, hooks, found)
    for one in hooks:
        check_program(place, one)
    return changes


def wanted_hook(kind: Kind, parts: Parts, wishes: Wishes, found: Found) -> Hook:
    """Give a hook as it must be, with what was wished for on top of the settings that are there."""
    name = KINDS[kind]
    has = found.hooks.get(name)
    keys = {**_settings(name, has.settings if has is not None and has.ours else ""), **wishes.settings.get(kind, {})}
    parts.check(kind, keys)
    return hook(name, parts.bundle(kind), keys)


def _settings(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(
            f"hook {name}: expected its settings in JSON, got: {error}; look at them with "
            f"qmgr -c 'export hook {name} application/x-config default', and import what is right"
        ) from error
    return dict(found)


def check_program(place: Place, one: Hook) -> None:
    """Let the server's own Python read a hook's program. Raises :class:`BadInput`, :class:`Refused` (too old)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2]); compile(sys.stdin.read(), sys.argv[-1], 'exec')"
    command = [str(place.program("pbs_python")), "-c", code, one.name]
    done = subprocess.run(command, input=one.program, capture_output=True, text=True, check=False)  # noqa: S603
    version = done.stdout.strip()
    if version and tuple(int(part) for part in version.split(".")) < OLDEST:
        raise Refused(
            f"{place.exec}: expected an OpenPBS with Python 3.6 or later, got {version}; hooks cannot run there"
        )
    if done.returncode or not version:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise BadInput(
            f"hook {one.name}: expected a program that Python {version} reads, got: {said[0]}; install virtcloud anew"
        )


def plan_removal(server: Server, running: Callable[[], Sequence[str]], *, force: bool) -> list[Change]:
    """Give what an uninstallation would remove. Raises :class:`Conflict` while jobs run with a cluster.

    ``running`` gives those jobs. It is not asked where there is nothing to remove, or no job can have one.
    """
    found = qmgr.read(server)
    changes = difference.uninstall(RESOURCES, found)
    ask = changes and not force and RESOURCES[0].name in found.resources
    if ask and (jobs := running()):
        raise Conflict(
            f"jobs run with a cluster ({', '.join(jobs[:5])}{', …' if jobs[5:] else ''}): without the hooks nothing "
            "would remove their clusters at their end; wait until they have ended, or give --force"
        )
    return changes


def remove(server: Server, changes: Sequence[Change]) -> list[str]:
    """Do what :func:`plan_removal` gave; gives what the server keeps, with its reason (a resource that jobs name)."""
    kept = []
    for change in changes:
        try:
            qmgr.apply(server, change)
        except Refused as error:
            if not change.says.startswith("delete resource "):
                raise
            kept.append(str(error))
    return kept
