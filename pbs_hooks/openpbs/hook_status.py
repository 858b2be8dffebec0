"""Checks an installation: the hooks, SBF, the hosts and their agents, and reconciliation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pbs_hooks.kit.hook_settings import SettingsError, read_names, validate_settings
from pbs_hooks.openpbs import install, qmgr, server_state
from pbs_hooks.openpbs.hooks.openpbs_settings import SERVER_SETTINGS
from pbs_hooks.openpbs.install import HOOK_NAMES, HookSources, RequestedSettings
from pbs_hooks.openpbs.qmgr import PbsInstallation, QmgrServer
from pbs_hooks.openpbs.server_state import MOM_HOOK, RESOURCES, SERVER_HOOK, ServerState, parse_qmgr_list
from virtcloud.client.api import Client
from virtcloud.jobs.host_names import element_of_host
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView
from virtcloud.model.errors import BadInput, Forbidden, VirtcloudError
from virtcloud.scheduler.status import read_status

AGENT_STALE_AFTER = timedelta(minutes=3)
"""An agent is stale if its last call to SBF is older than this duration. A running agent calls SBF at least once a
minute."""
SENT = "0"


def find_hosts_without_copy(tracking: str, hook: str) -> list[str]:
    """Return the hosts to which the server has not yet sent the newest version of a hook.

    ``tracking`` is the server's list of transfers, with lines ``host:port hook action number``. Action 0 is a completed
    transfer. The last line of a host counts.
    """
    last = {
        description[0].rpartition(":")[0]: description[2]
        for description in map(str.split, tracking.splitlines())
        if len(description) == 4 and description[1] == hook  # noqa: PLR2004 - the fields of the form above
    }
    return sorted(host for host, action in last.items() if action != SENT)


def find_host_faults(
    hosts: Iterable[str], names: Mapping[str, str], elements: Iterable[ElementView], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield each faulty PBS host with a description of its fault."""
    known = {str(element.name): element for element in elements if element.kind is ElementKind.HOST}
    for host in hosts:
        element = known.get(element_of_host(host, names))
        if element is None:
            yield host, f"SBF has no host {element_of_host(host, names)}: jobs with a cluster cannot run there"
        elif element.last_seen is None:
            yield host, "its agent has never called SBF: is 'virtcloud agent' installed and running there?"
        elif now - element.last_seen > AGENT_STALE_AFTER:
            yield host, f"its agent is stale: last call {element.last_seen:%Y-%m-%d %H:%M:%S} UTC; read its log there"
        elif element.trouble:
            yield host, f"its agent reports: {element.trouble}"


TRACKING_FILE = "server_priv/hooks/tracking.TR"


@dataclass(frozen=True, slots=True)
class HookFinding:
    """The result of one check. ``good``: the check found no fault."""

    subject: str
    good: bool
    seen: str


def check_installation(
    server: QmgrServer, installation: PbsInstallation, sources: HookSources, reconciled: Path, now: datetime
) -> Iterator[HookFinding]:
    """Run all checks and yield their findings.

    Raises an error only if PBS itself does not answer.

    ``reconciled`` is the path of the status file of reconciliation.
    """
    state = qmgr.read_server_state(server)
    yield from _check_hooks(state, sources)
    if SERVER_HOOK not in state.hooks:
        return
    keys = read_hook_settings(state, SERVER_HOOK)
    elements: Sequence[ElementView] = ()
    try:
        elements = _read_elements(keys)
    except VirtcloudError as error:
        yield HookFinding("SBF", good=False, seen=str(error))
    else:
        yield HookFinding("SBF", good=True, seen=f"answers at {keys.get('sbf')}, and accepts the hooks' token")
        yield from _check_hosts(server, keys, elements, now)
    yield from _check_copies(installation)
    yield from check_reconciliation(reconciled, now)


def _check_hooks(server: ServerState, sources: HookSources) -> Iterator[HookFinding]:
    for kind, name in HOOK_NAMES.items():
        installed = server.hooks.get(name)
        if installed is None:
            yield HookFinding(f"hook {name}", good=False, seen="not installed: run virtcloud pbs install")
            continue
        try:
            wanted = install.build_wanted_hook(kind, sources, RequestedSettings(), server)
            differs = [change.description for change in server_state.compute_installation((), [wanted], server)]
        except VirtcloudError as error:
            yield HookFinding(f"hook {name}", good=False, seen=str(error))
            continue
        for description in differs:
            yield HookFinding(
                f"hook {name}",
                good=False,
                seen=f"{description.removeprefix(f'hook {name}: ')}: run virtcloud pbs install",
            )
        state = "enabled" if installed.attributes.get("enabled") == "true" else "disabled"
        yield HookFinding(
            f"hook {name}",
            good=not differs,
            seen=f"{state}, version {installed.digest}, settings {_format_settings(installed.settings)}",
        )
    for resource in RESOURCES:
        if server.resources.get(resource.name) != resource:
            yield HookFinding(
                f"resource {resource.name}",
                good=False,
                seen="missing, or its type or flags differ: run virtcloud pbs install",
            )


def _format_settings(settings: str) -> str:
    try:
        return json.dumps(json.loads(settings or "{}"), sort_keys=True)
    except ValueError:
        return "not JSON"


def read_hook_settings(server: ServerState, name: str) -> Mapping[str, Any]:
    """Return the settings of a hook; an empty mapping if the hook is missing or the settings are no JSON object."""
    try:
        return dict(json.loads(server.hooks[name].settings or "{}"))
    except (KeyError, ValueError, TypeError):
        return {}


def _read_elements(keys: Mapping[str, Any]) -> Sequence[ElementView]:
    """Read the elements from SBF with the token of the hooks.

    Raise the client's errors, BadInput for an invalid setting, and Forbidden for a token with another role than
    scheduler or operator.
    """
    tables = {name: SERVER_SETTINGS[name] for name in ("sbf", "token_file", "ca_file") if name in keys}
    try:
        validate_settings({name: keys[name] for name in tables}, tables)
    except SettingsError as error:
        raise BadInput("; ".join(str(error).splitlines())) from error
    with Client(keys.get("sbf"), token_file=keys.get("token_file"), ca_file=keys.get("ca_file")) as client:
        caller = client.sbf.whoami()
        if caller.role not in {Role.SCHEDULER, Role.OPERATOR}:
            raise Forbidden(
                f"token file {keys.get('token_file')}: expected a token of the role scheduler, got the token of "
                f"{caller.name} with the role {caller.role}; create a token: virtcloud token create pbs --role "
                "scheduler --output FILE"
            )
        return client.sbf.elements()


def _check_hosts(
    server: QmgrServer, keys: Mapping[str, Any], elements: Iterable[ElementView], now: datetime
) -> Iterator[HookFinding]:
    nodes = list(parse_qmgr_list(server.run_line("list node @default")))
    wrong = list(find_host_faults(nodes, _read_host_names(keys), elements, now))
    for host, text in wrong:
        yield HookFinding(f"host {host}", good=False, seen=text)
    yield HookFinding(
        "hosts", good=not wrong, seen=f"{len(nodes) - len(wrong)} of {len(nodes)} are in SBF and have a running agent"
    )


def _read_host_names(keys: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        return read_names(keys.get("hosts", {}))
    except ValueError:
        return {}  # _check_hooks reports the invalid setting


def _check_copies(installation: PbsInstallation) -> Iterator[HookFinding]:
    file = installation.home / TRACKING_FILE
    try:
        waiting = find_hosts_without_copy(file.read_text(), MOM_HOOK)
    except OSError as error:
        yield HookFinding("copies on hosts", good=False, seen=f"unknown: {file}: {error.strerror}")
        return
    if waiting:
        yield HookFinding(
            "copies on hosts", good=False, seen=f"the server has not yet sent {MOM_HOOK} to {', '.join(waiting)}"
        )
    else:
        yield HookFinding("copies on hosts", good=True, seen=f"the server has sent {MOM_HOOK} to every host")


def check_reconciliation(file: Path, now: datetime) -> Iterator[HookFinding]:
    """Yield the alerts and the state of reconciliation as findings. ``file`` is the status file of reconciliation."""
    try:
        status = read_status(file)
    except VirtcloudError as error:
        yield HookFinding("reconciliation", good=False, seen=str(error))
        return
    report = status.report
    for alert in report.alerts:
        yield HookFinding(f"alert {alert.name}", good=False, seen=alert.text)
    at = f"last round {report.at:%Y-%m-%d %H:%M:%S} UTC"
    if status.late(now):
        seen = f"{at}, overdue: is 'virtcloud agent' running on the host of the PBS server?"
        yield HookFinding("reconciliation", good=False, seen=seen)
    elif not report.good:
        yield HookFinding("reconciliation", good=False, seen=f"{at} failed: read the agent's log")
    else:
        seen = f"{at}: {report.jobs} jobs, {report.clusters} clusters, {len(report.doubts)} mismatches"
        yield HookFinding("reconciliation", good=True, seen=seen)
