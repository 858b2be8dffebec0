"""How the hooks are: what a PBS server has of them, and whether what they need answers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from virtcloud.cluster import Client
from virtcloud.model.access import Role
from virtcloud.model.errors import Forbidden, VirtcloudError
from virtcloud.model.views import ElementView
from virtcloud.pbs import difference, install, moms, qmgr
from virtcloud.pbs.found import Found, objects
from virtcloud.pbs.install import KINDS, Parts, Wishes
from virtcloud.pbs.place import Place
from virtcloud.pbs.qmgr import Server
from virtcloud.pbs.wanted import MOM, RESOURCES, SERVER
from virtcloud.scheduler.status import read_status

TRACKING = "server_priv/hooks/tracking.TR"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: whether it is as it must be, and what was seen."""

    subject: str
    good: bool
    seen: str


def findings(server: Server, place: Place, parts: Parts, reconciled: Path, now: datetime) -> Iterator[Finding]:
    """Look at everything; what cannot be asked is a finding, too. Raises only where PBS itself does not answer.

    ``reconciled`` is the file in which reconciliation says what it saw.
    """
    found = qmgr.read(server)
    yield from _installed(found, parts)
    if SERVER not in found.hooks:
        return
    keys = settings(found, SERVER)
    elements: Sequence[ElementView] = ()
    try:
        elements = _ask_sbf(keys)
    except VirtcloudError as error:
        yield Finding("SBF", good=False, seen=str(error))
    else:
        yield Finding("SBF", good=True, seen=f"answers at {keys.get('sbf')}, and takes the hooks for a scheduler")
        yield from _hosts(server, settings(found, MOM), elements, now)
    yield from _copies(place)
    yield from reconciliation(reconciled, now)


def _installed(found: Found, parts: Parts) -> Iterator[Finding]:
    for kind, name in KINDS.items():
        has = found.hooks.get(name)
        if has is None:
            yield Finding(f"hook {name}", good=False, seen="not there: virtcloud pbs install")
            continue
        try:
            wanted = install.wanted_hook(kind, parts, Wishes(), found)
            differs = [one.says for one in difference.install((), [wanted], found)]
        except VirtcloudError as error:
            yield Finding(f"hook {name}", good=False, seen=str(error))
            continue
        for words in differs:
            yield Finding(
                f"hook {name}", good=False, seen=f"{words.removeprefix(f'hook {name}: ')}: virtcloud pbs install"
            )
        state = "enabled" if has.attributes.get("enabled") == "true" else "disabled"
        yield Finding(
            f"hook {name}", good=not differs, seen=f"{state}, version {has.digest}, settings {_shown(has.settings)}"
        )
    for one in RESOURCES:
        if found.resources.get(one.name) != one:
            yield Finding(f"resource {one.name}", good=False, seen="not there, or not ours: virtcloud pbs install")


def _shown(settings: str) -> str:
    try:
        return json.dumps(json.loads(settings or "{}"), sort_keys=True)
    except ValueError:
        return "that are no JSON"


def settings(found: Found, name: str) -> Mapping[str, Any]:
    """Give a hook's settings, nothing where there are none that can be read."""
    try:
        return dict(json.loads(found.hooks[name].settings or "{}"))
    except (KeyError, ValueError):
        return {}


def _ask_sbf(keys: Mapping[str, Any]) -> Sequence[ElementView]:
    """Ask SBF as the hooks do; raises what the client raises, and Forbidden for a token of another role."""
    with Client(keys.get("sbf"), token_file=keys.get("token_file"), ca_file=keys.get("ca_file")) as client:
        found = client.sbf.whoami()
        if found.role not in {Role.SCHEDULER, Role.OPERATOR}:
            raise Forbidden(
                f"token file {keys.get('token_file')}: expected a scheduler's token, got one of {found.name}, "
                f"{found.role}; make one: virtcloud token create pbs --role scheduler --output FILE"
            )
        return client.sbf.elements()


def _hosts(
    server: Server, keys: Mapping[str, Any], elements: Iterable[ElementView], now: datetime
) -> Iterator[Finding]:
    nodes = list(objects(server.ask("list node @default")))
    wrong = list(moms.troubles(nodes, keys.get("hosts", {}), elements, now))
    for host, text in wrong:
        yield Finding(f"host {host}", good=False, seen=text)
    yield Finding(
        "hosts", good=not wrong, seen=f"{len(nodes) - len(wrong)} of {len(nodes)} are in SBF with an agent that answers"
    )


def _copies(place: Place) -> Iterator[Finding]:
    file = place.home / TRACKING
    try:
        waiting = moms.without_copy(file.read_text(), MOM)
    except OSError as error:
        yield Finding("copies on hosts", good=False, seen=f"cannot be told: {file}: {error.strerror}")
        return
    if waiting:
        yield Finding("copies on hosts", good=False, seen=f"the server has yet to send {MOM} to {', '.join(waiting)}")
    else:
        yield Finding("copies on hosts", good=True, seen=f"the server has sent {MOM} to every host")


def reconciliation(file: Path, now: datetime) -> Iterator[Finding]:
    """Say what reconciliation saw last, and what it finds wrong."""
    try:
        told = read_status(file)
    except VirtcloudError as error:
        yield Finding("reconciliation", good=False, seen=str(error))
        return
    report = told.report
    for one in report.alerts:
        yield Finding(f"alert {one.name}", good=False, seen=one.text)
    at = f"looked at {report.at:%Y-%m-%d %H:%M:%S} UTC"
    if told.late(now):
        yield Finding("reconciliation", good=False, seen=f"{at} and not since: is its 'virtcloud agent' running?")
    elif not report.good:
        yield Finding("reconciliation", good=False, seen=f"{at}, and could not: see the agent's log")
    else:
        seen = f"{at}: {report.jobs} jobs, {report.clusters} clusters, {len(report.doubts)} in doubt"
        yield Finding("reconciliation", good=True, seen=seen)
