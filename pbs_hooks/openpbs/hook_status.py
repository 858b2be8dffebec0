"""How the hooks are: what a PBS server has of them, and whether what they need answers.

PURE. What can be told about the MoMs from the server's host: copies of hooks, and their hosts' agents.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pbs_hooks.openpbs import install, qmgr, server_state
from pbs_hooks.openpbs.install import HOOK_NAMES, HookSources, RequestedSettings
from pbs_hooks.openpbs.qmgr import PbsInstallation, QmgrServer
from pbs_hooks.openpbs.server_state import MOM_HOOK, RESOURCES, SERVER_HOOK, ServerState, parse_qmgr_list
from virtcloud.client.api import Client
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Forbidden, VirtcloudError
from virtcloud.model.views import ElementView
from virtcloud.scheduler.status import read_status

AGENT_STALE_AFTER = timedelta(minutes=3)
"""An agent asks SBF at least once a minute."""
SENT = "0"


def find_hosts_without_copy(tracking: str, hook: str) -> list[str]:
    """Give the hosts that the server has yet to send the newest copy of a hook.

    ``tracking`` is the server's list of them: a line ``host:port hook action number`` for each sending, action 0 when
    it was done; the last line of a host counts.
    """
    last = {
        words[0].rpartition(":")[0]: words[2]
        for words in map(str.split, tracking.splitlines())
        if len(words) == 4 and words[1] == hook  # noqa: PLR2004 - as above
    }
    return sorted(host for host, action in last.items() if action != SENT)


def element_of(host: str, names: Mapping[str, str]) -> str:
    """Give SBF's name of a host, by the hooks' setting ``hosts`` or as PBS's name up to the first dot."""
    return names.get(host, host.partition(".")[0].lower())


def find_host_faults(
    hosts: Iterable[str], names: Mapping[str, str], elements: Iterable[ElementView], now: datetime
) -> Iterator[tuple[str, str]]:
    """Give each host of PBS with which something is wrong, and what."""
    known = {str(one.name): one for one in elements if one.kind is ElementKind.HOST}
    for host in hosts:
        one = known.get(element_of(host, names))
        if one is None:
            yield host, f"SBF has no host {element_of(host, names)}: jobs with a cluster cannot run there"
        elif one.last_seen is None:
            yield host, "its agent has never asked SBF: is 'virtcloud agent' installed and started there?"
        elif now - one.last_seen > AGENT_STALE_AFTER:
            yield host, f"its agent has been silent since {one.last_seen:%Y-%m-%d %H:%M:%S} UTC: look at its log there"
        elif one.trouble:
            yield host, f"its agent says: {one.trouble}"


TRACKING_FILE = "server_priv/hooks/tracking.TR"


@dataclass(frozen=True, slots=True)
class HookFinding:
    """One thing that was looked at: whether it is as it must be, and what was seen."""

    subject: str
    good: bool
    seen: str


def check_installation(
    server: QmgrServer, place: PbsInstallation, parts: HookSources, reconciled: Path, now: datetime
) -> Iterator[HookFinding]:
    """Look at everything; what cannot be asked is a finding, too. Raises only where PBS itself does not answer.

    ``reconciled`` is the file in which reconciliation says what it saw.
    """
    found = qmgr.read_server_state(server)
    yield from _check_hooks(found, parts)
    if SERVER_HOOK not in found.hooks:
        return
    keys = read_hook_settings(found, SERVER_HOOK)
    elements: Sequence[ElementView] = ()
    try:
        elements = _read_elements(keys)
    except VirtcloudError as error:
        yield HookFinding("SBF", good=False, seen=str(error))
    else:
        yield HookFinding("SBF", good=True, seen=f"answers at {keys.get('sbf')}, and takes the hooks for a scheduler")
        yield from _check_hosts(server, read_hook_settings(found, MOM_HOOK), elements, now)
    yield from _check_copies(place)
    yield from check_reconciliation(reconciled, now)


def _check_hooks(found: ServerState, parts: HookSources) -> Iterator[HookFinding]:
    for kind, name in HOOK_NAMES.items():
        has = found.hooks.get(name)
        if has is None:
            yield HookFinding(f"hook {name}", good=False, seen="not there: virtcloud pbs install")
            continue
        try:
            wanted = install.build_wanted_hook(kind, parts, RequestedSettings(), found)
            differs = [one.says for one in server_state.compute_installation((), [wanted], found)]
        except VirtcloudError as error:
            yield HookFinding(f"hook {name}", good=False, seen=str(error))
            continue
        for words in differs:
            yield HookFinding(
                f"hook {name}", good=False, seen=f"{words.removeprefix(f'hook {name}: ')}: virtcloud pbs install"
            )
        state = "enabled" if has.attributes.get("enabled") == "true" else "disabled"
        yield HookFinding(
            f"hook {name}",
            good=not differs,
            seen=f"{state}, version {has.digest}, settings {_format_settings(has.settings)}",
        )
    for one in RESOURCES:
        if found.resources.get(one.name) != one:
            yield HookFinding(f"resource {one.name}", good=False, seen="not there, or not ours: virtcloud pbs install")


def _format_settings(settings: str) -> str:
    try:
        return json.dumps(json.loads(settings or "{}"), sort_keys=True)
    except ValueError:
        return "that are no JSON"


def read_hook_settings(found: ServerState, name: str) -> Mapping[str, Any]:
    """Give a hook's settings, nothing where there are none that can be read."""
    try:
        return dict(json.loads(found.hooks[name].settings or "{}"))
    except (KeyError, ValueError):
        return {}


def _read_elements(keys: Mapping[str, Any]) -> Sequence[ElementView]:
    """Ask SBF as the hooks do; raises what the client raises, and Forbidden for a token of another role."""
    with Client(keys.get("sbf"), token_file=keys.get("token_file"), ca_file=keys.get("ca_file")) as client:
        found = client.sbf.whoami()
        if found.role not in {Role.SCHEDULER, Role.OPERATOR}:
            raise Forbidden(
                f"token file {keys.get('token_file')}: expected a scheduler's token, got one of {found.name}, "
                f"{found.role}; make one: virtcloud token create pbs --role scheduler --output FILE"
            )
        return client.sbf.elements()


def _check_hosts(
    server: QmgrServer, keys: Mapping[str, Any], elements: Iterable[ElementView], now: datetime
) -> Iterator[HookFinding]:
    nodes = list(parse_qmgr_list(server.ask("list node @default")))
    wrong = list(find_host_faults(nodes, keys.get("hosts", {}), elements, now))
    for host, text in wrong:
        yield HookFinding(f"host {host}", good=False, seen=text)
    yield HookFinding(
        "hosts", good=not wrong, seen=f"{len(nodes) - len(wrong)} of {len(nodes)} are in SBF with an agent that answers"
    )


def _check_copies(place: PbsInstallation) -> Iterator[HookFinding]:
    file = place.home / TRACKING_FILE
    try:
        waiting = find_hosts_without_copy(file.read_text(), MOM_HOOK)
    except OSError as error:
        yield HookFinding("copies on hosts", good=False, seen=f"cannot be told: {file}: {error.strerror}")
        return
    if waiting:
        yield HookFinding(
            "copies on hosts", good=False, seen=f"the server has yet to send {MOM_HOOK} to {', '.join(waiting)}"
        )
    else:
        yield HookFinding("copies on hosts", good=True, seen=f"the server has sent {MOM_HOOK} to every host")


def check_reconciliation(file: Path, now: datetime) -> Iterator[HookFinding]:
    """Say what reconciliation saw last, and what it finds wrong."""
    try:
        told = read_status(file)
    except VirtcloudError as error:
        yield HookFinding("reconciliation", good=False, seen=str(error))
        return
    report = told.report
    for one in report.alerts:
        yield HookFinding(f"alert {one.name}", good=False, seen=one.text)
    at = f"looked at {report.at:%Y-%m-%d %H:%M:%S} UTC"
    if told.late(now):
        yield HookFinding("reconciliation", good=False, seen=f"{at} and not since: is its 'virtcloud agent' running?")
    elif not report.good:
        yield HookFinding("reconciliation", good=False, seen=f"{at}, and could not: see the agent's log")
    else:
        seen = f"{at}: {report.jobs} jobs, {report.clusters} clusters, {len(report.doubts)} in doubt"
        yield HookFinding("reconciliation", good=True, seen=seen)
