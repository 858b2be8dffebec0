"""Installs and removes the hooks and their resources.

All checks precede the first change. Only hooks and resources that differ from the wanted state are changed.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pbs_hooks.bundle import bundle_hook
from pbs_hooks.kit.hook_settings import SettingsError, validate_settings
from pbs_hooks.openpbs import qmgr, server_state
from pbs_hooks.openpbs.hooks.openpbs_settings import MOM_SETTINGS, SERVER_SETTINGS
from pbs_hooks.openpbs.qmgr import PbsInstallation, QmgrServer
from pbs_hooks.openpbs.server_state import (
    MOM_HOOK,
    RESOURCES,
    SERVER_HOOK,
    InstallationChange,
    PbsHook,
    ServerState,
    build_hook,
)
from virtcloud.model.errors import BadInput, Conflict, Refused

OLDEST_PYTHON = (3, 6)
HookKind = Literal["server", "mom"]
HOOK_NAMES: Mapping[HookKind, str] = {"server": SERVER_HOOK, "mom": MOM_HOOK}
"""PBS's names of the hooks, by the short names in settings files and bundles."""
SettingValues = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HookSources:
    """Sources of the hooks: ``bundle`` returns a program, ``check`` raises BadInput for invalid settings."""

    bundle: Callable[[HookKind], str]
    check: Callable[[HookKind, SettingValues], None]


@dataclass(frozen=True, slots=True)
class RequestedSettings:
    """Requested settings by kind of hook. Other settings keep their installed values."""

    settings: Mapping[str, SettingValues] = field(default_factory=dict)


def plan_installation(
    server: QmgrServer, installation: PbsInstallation, sources: HookSources, requested: RequestedSettings
) -> list[InstallationChange]:
    """Return the changes of an installation.

    Raise the errors of :mod:`pbs_hooks.openpbs.qmgr`, and BadInput, Refused and Unsafe if a check fails.
    """
    state = qmgr.read_server_state(server)
    hooks = [build_wanted_hook(kind, sources, requested, state) for kind in HOOK_NAMES]
    changes = server_state.compute_installation(RESOURCES, hooks, state)
    for hook in hooks:
        check_program(installation, hook)
    return changes


def build_wanted_hook(
    kind: HookKind, sources: HookSources, requested: RequestedSettings, server: ServerState
) -> PbsHook:
    """Return the wanted state of a hook: its program, and its installed settings with the requested changes.

    Raise BadInput for invalid settings.
    """
    name = HOOK_NAMES[kind]
    installed = server.hooks.get(name)
    keys = {
        **_parse_settings(name, installed.settings if installed is not None and installed.ours else ""),
        **requested.settings.get(kind, {}),
    }
    sources.check(kind, keys)
    return build_hook(name, sources.bundle(kind), keys)


def _parse_settings(name: str, text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise _not_an_object(name, str(error)) from error
    if not isinstance(settings, dict):
        raise _not_an_object(name, f"{settings!r:.80}")
    return settings


def _not_an_object(name: str, found: str) -> BadInput:
    return BadInput(
        f"hook {name}: expected its settings as a JSON object, got: {found}; print the settings with "
        f"qmgr -c 'export hook {name} application/x-config default', and import valid settings"
    )


def check_program(installation: PbsInstallation, hook: PbsHook) -> None:
    """Compile a program with the server's Python.

    Raise BadInput if the program does not compile. Raise Refused if Python is too old.
    """
    code = "import sys; print('%d.%d' % sys.version_info[:2]); compile(sys.stdin.buffer.read(), sys.argv[-1], 'exec')"
    command = [str(installation.program("pbs_python")), "-c", code, hook.name]
    done = subprocess.run(  # noqa: S603
        command, input=hook.program, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    version = done.stdout.strip()
    if version and tuple(int(part) for part in version.split(".")) < OLDEST_PYTHON:
        raise Refused(
            f"{installation.exec}: expected an OpenPBS with Python 3.6 or later, got {version}; hooks cannot run there"
        )
    if done.returncode or not version:
        output = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise BadInput(
            f"hook {hook.name}: expected a program that Python {version} can compile, got: {output[0]}; "
            "reinstall virtcloud"
        )


def plan_removal(server: QmgrServer, running: Callable[[], Sequence[str]], *, force: bool) -> list[InstallationChange]:
    """Return the changes of an uninstallation. Raise Conflict if jobs with a cluster run and ``force`` is false.

    Raise Unsafe if a foreign hook has one of virtcloud's names. Raise the errors of :mod:`pbs_hooks.openpbs.qmgr`, too.
    ``running`` returns the jobs with a cluster.
    """
    state = qmgr.read_server_state(server)
    changes = server_state.compute_removal(RESOURCES, state)
    must_check = changes and not force and RESOURCES[0].name in state.resources
    if must_check and (jobs := running()):
        raise Conflict(
            f"jobs run with a cluster ({', '.join(jobs[:5])}{', …' if jobs[5:] else ''}): without the hooks, their "
            "clusters would remain after the end of the jobs; wait until the jobs have ended, or use --force"
        )
    return changes


def apply_removal(server: QmgrServer, changes: Sequence[InstallationChange]) -> list[str]:
    """Apply the changes of a removal.

    Return the server's errors for resources that jobs still use. Raise Refused if the server does not delete a hook.
    """
    errors = []
    for change in changes:
        try:
            qmgr.apply_change(server, change)
        except Refused as error:
            if not change.description.startswith("delete resource "):
                raise
            errors.append(str(error))
    return errors


SETTING_TABLES = {"server": SERVER_SETTINGS, "mom": MOM_SETTINGS}


def check_settings(kind: HookKind, keys: SettingValues) -> None:
    """Raise BadInput for settings that the hook would reject."""
    try:
        validate_settings(dict(keys), SETTING_TABLES[kind])
    except SettingsError as error:
        faults = "\n".join(f"{kind}: {line}" for line in str(error).splitlines())
        if kind == "server" and keys.get("sbf") is None:
            faults += "\nserver: to set SBF's address, run: virtcloud pbs install --sbf https://HOST:PORT"
        raise BadInput(faults) from error


BUNDLED_SOURCES = HookSources(bundle_hook, check_settings)
