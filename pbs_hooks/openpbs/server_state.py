"""Wanted and observed hooks and resources of a PBS server, and the ``qmgr`` requests for their difference. Pure."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtcloud.model.errors import Unsafe

HOOK_MARK = "# Written by 'virtcloud pbs install'"
"""The beginning of the first line of virtcloud's hooks. Foreign hooks of the same name do not have this line."""

HOOK_ORDER = "900"
"""The order number of virtcloud's hooks (PBS allows 1 to 1000).

A site's other hooks therefore run first, receive unchanged jobs, and never wait for a job's cluster. A job that another
hook rejects requests no network.
"""


@dataclass(frozen=True, slots=True)
class PbsResource:
    """A resource of the server. ``flags`` are in alphabetical order, as PBS lists them."""

    name: str
    type: str
    flags: str


@dataclass(frozen=True, slots=True)
class PbsHook:
    """A hook as wanted or as installed, with its attributes as PBS writes them, and its settings (JSON)."""

    name: str
    attributes: Mapping[str, str]
    program: str = field(repr=False)
    settings: str

    @property
    def ours(self) -> bool:
        """Return whether virtcloud wrote the hook.

        A hook without a program counts as virtcloud's: an interrupted installation leaves such a hook.
        """
        return not self.program.strip() or self.program.startswith(HOOK_MARK)

    @property
    def digest(self) -> str:
        """The version of the program as a hash, or "empty" if the hook has no program."""
        return hashlib.sha256(self.program.encode()).hexdigest()[:12] if self.program.strip() else "empty"


RESOURCES = (PbsResource("vcluster", "string", "m"), PbsResource("vcluster_spec", "string", "im"))
"""virtcloud's resources. Flag ``m``: the hosts of a job receive the resource. Flag ``i``: users do not see the
resource."""

SERVER_HOOK, MOM_HOOK = "virtcloud_server", "virtcloud_mom"

HOOK_EVENTS: Mapping[str, tuple[str, ...]] = {
    SERVER_HOOK: ("queuejob", "modifyjob", "runjob", "jobobit"),
    MOM_HOOK: (
        "execjob_begin",
        "execjob_prologue",
        "execjob_end",
        "execjob_preterm",
        "execjob_launch",
        "execjob_abort",
        "exechost_periodic",
        "exechost_startup",
    ),
}

HOOK_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    SERVER_HOOK: {"alarm": "5", "fail_action": "none"},
    MOM_HOOK: {"alarm": "600", "freq": "60", "fail_action": "offline_vnodes,clear_vnodes_upon_recovery"},
}
"""The attributes of each hook.

PBS applies ``fail_action`` when a hook crashes or exceeds its alarm, not when the hook rejects a job. The
``fail_action`` of the MoM hook protects jobs from a host where the hook crashes: PBS starts no jobs there until the MoM
restarts. The value ``clear_vnodes_upon_recovery`` needs a hook with the event ``exechost_startup``. In this event, the
MoM hook only loads its modules.
"""


def build_hook(name: str, program: str, settings: Mapping[str, Any]) -> PbsHook:
    """Return the wanted state of the hook ``name``; ``program`` is its bundle."""
    digest = hashlib.sha256(program.encode()).hexdigest()[:12]
    text = f"{HOOK_MARK}; changes are lost. Bundle {digest}.\n{program}"
    common = {"type": "site", "enabled": "true", "user": "pbsadmin", "order": HOOK_ORDER}
    attributes = {**common, "event": ",".join(HOOK_EVENTS[name]), **HOOK_ATTRIBUTES[name]}
    return PbsHook(name, attributes, text, json.dumps(dict(settings), indent=1, sort_keys=True) + "\n")


OBJECT_HEADER = re.compile(r"(Hook|Resource|Node|Server) (\S+)")


@dataclass(frozen=True, slots=True)
class ServerState:
    """The observed state of a server: all custom resources, and the hooks with virtcloud's names."""

    resources: Mapping[str, PbsResource] = field(default_factory=dict)
    hooks: Mapping[str, PbsHook] = field(default_factory=dict)


def parse_qmgr_list(text: str) -> dict[str, dict[str, str]]:
    """Parse the output of ``list hook``, ``list resource`` and similar requests to qmgr.

    Return the attributes of each object by the object's name. In this output, continuation lines begin with a tab.
    """
    objects: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    for line in _unfold_lines(text):
        head = OBJECT_HEADER.fullmatch(line.strip())
        if head is not None and not line.startswith(" "):
            attributes = objects[head.group(2)] = {}
        elif " = " in line:
            key, _, value = line.partition(" = ")
            attributes[key.strip()] = value.strip().strip('"')
    return objects


def _unfold_lines(text: str) -> Iterator[str]:
    logical_line = ""
    for line in text.splitlines():
        if line.startswith("\t"):
            logical_line += line.strip()
            continue
        yield logical_line
        logical_line = line.rstrip()
    yield logical_line


def parse_resources(text: str) -> dict[str, PbsResource]:
    """Parse the output of ``list resource``."""
    return {
        name: PbsResource(name, attributes.get("type", ""), "".join(sorted(attributes.get("flag", ""))))
        for name, attributes in parse_qmgr_list(text).items()
    }


PROGRAM_TYPE, SETTINGS_TYPE = "application/x-python", "application/x-config"


@dataclass(frozen=True, slots=True)
class QmgrLine:
    """A line for qmgr, such as ``set hook H alarm = 5``."""

    line: str


@dataclass(frozen=True, slots=True)
class QmgrImport:
    """An import of a hook's program or settings."""

    hook: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class InstallationChange:
    """One change: its description, and the requests to qmgr in order."""

    description: str
    requests: tuple[QmgrLine | QmgrImport, ...]


def compute_installation(
    resources: Sequence[PbsResource], hooks: Sequence[PbsHook], server: ServerState
) -> list[InstallationChange]:
    """Return the changes that an installation needs.

    Raise Unsafe if a foreign hook or resource has one of virtcloud's names.
    """
    for hook in hooks:
        _refuse_foreign(server.hooks.get(hook.name))
    return [
        *(
            change
            for resource in resources
            for change in _compare_resource(resource, server.resources.get(resource.name))
        ),
        *(change for hook in hooks for change in _compare_hook(hook, server.hooks.get(hook.name))),
    ]


def compute_removal(resources: Sequence[PbsResource], server: ServerState) -> list[InstallationChange]:
    """Return the changes that delete virtcloud's hooks and resources.

    Leave a resource unchanged if its type or flags differ. Raise Unsafe if a foreign hook has one of virtcloud's names.
    """
    for hook in server.hooks.values():
        _refuse_foreign(hook)
    return [
        *(InstallationChange(f"delete hook {name}", (QmgrLine(f"delete hook {name}"),)) for name in server.hooks),
        *(
            InstallationChange(f"delete resource {resource.name}", (QmgrLine(f"delete resource {resource.name}"),))
            for resource in resources
            if server.resources.get(resource.name) == resource
        ),
    ]


def _refuse_foreign(hook: PbsHook | None) -> None:
    if hook is not None and not hook.ours:
        raise Unsafe(
            f"hook {hook.name}: expected a hook that 'virtcloud pbs install' wrote, got a foreign hook; left "
            f"unchanged. Inspect the hook (qmgr -c 'print hook {hook.name}'), and delete it if it is not needed"
        )


def _compare_resource(wanted: PbsResource, found: PbsResource | None) -> Iterator[InstallationChange]:
    if found is None:
        line = f"create resource {wanted.name} type={wanted.type},flag={wanted.flags}"
        yield InstallationChange(line, (QmgrLine(line),))
    elif found != wanted:
        raise Unsafe(
            f"resource {wanted.name}: expected type={wanted.type}, flag={wanted.flags}, got type={found.type}, "
            f"flag={found.flags or 'none'}; left unchanged, because another program may use the resource. If no "
            f"program uses it, delete it (qmgr -c 'delete resource {wanted.name}') and install again"
        )


def _compare_hook(wanted: PbsHook, installed: PbsHook | None) -> Iterator[InstallationChange]:
    if installed is None:
        yield InstallationChange(f"create hook {wanted.name}", (QmgrLine(f"create hook {wanted.name}"),))
        installed = PbsHook(wanted.name, {}, "", "")
    yield from _compare_settings(wanted, installed)
    yield from _compare_attributes(wanted, installed)
    if wanted.program != installed.program:
        description = f"hook {wanted.name}: program {installed.digest} becomes {wanted.digest}"
        yield InstallationChange(description, (QmgrImport(wanted.name, PROGRAM_TYPE, wanted.program),))


def _compare_settings(wanted: PbsHook, installed: PbsHook) -> Iterator[InstallationChange]:
    """Yield the change of a hook's settings, or nothing if the settings are equal.

    This change must precede the change of the program: a new program may not accept the old settings.
    """
    if wanted.settings == installed.settings:
        return
    lines = difflib.unified_diff(
        _format_settings(installed.settings), _format_settings(wanted.settings), lineterm="", n=0
    )
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@")) and line[1:].strip(" {},")]
    description = "\n".join([f"hook {wanted.name}: settings", *(f"  {line}" for line in shown)])
    yield InstallationChange(description, (QmgrImport(wanted.name, SETTINGS_TYPE, wanted.settings),))


def _format_settings(settings: str) -> list[str]:
    """Return one line per key, independent of the order of keys and the spaces in the input."""
    try:
        read = json.loads(settings or "{}")
    except ValueError:
        return settings.splitlines()
    return [f"{key} = {json.dumps(read[key])}" for key in sorted(read)]


def _compare_attributes(wanted: PbsHook, installed: PbsHook) -> Iterator[InstallationChange]:
    """Yield the changes of a hook's attributes. ``event`` is first: PBS rejects ``fail_action`` without an event.

    These changes must precede the change of the program. If a hook with a program gets ``freq``, OpenPBS 23.06 also
    runs the hook in the server, even after the hook's deletion. In this state, pbs_server logs errors and does no other
    work.
    """
    for name in sorted(wanted.attributes, key=lambda key: (key != "event", key)):
        value, former = wanted.attributes[name], installed.attributes.get(name, "")
        if _split_words(value) != _split_words(former):
            line = (
                f'set hook {wanted.name} {name} = "{value}"'
                if "," in value
                else f"set hook {wanted.name} {name} = {value}"
            )
            was = f" (was {former})" if former else ""
            yield InstallationChange(f"hook {wanted.name}: {name} = {value}{was}", (QmgrLine(line),))


def _split_words(value: str) -> frozenset[str]:
    return frozenset(value.split(","))
