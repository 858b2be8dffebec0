"""PURE. What an OpenPBS server must have for virtcloud: two resources and two hooks.

PURE. Reads what ``qmgr`` prints of hooks and resources.

PURE. From what a PBS server has to what it must have: the changes, each in words and as requests to qmgr.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtcloud.model.errors import Unsafe

HOOK_MARK = "# Written by 'virtcloud pbs install'"
"""How the first line of our hooks begins, by which they are told from others of the same name."""

HOOK_ORDER = "900"
"""Ours come after other sites' hooks (PBS: 1 to 1000, pbs_cgroups has 100): those see jobs as they always did, a job
that they refuse never asks for a network, and none of them waits behind our barrier."""


@dataclass(frozen=True, slots=True)
class PbsResource:
    """A resource of the server; ``flags`` in alphabetical order, as PBS lists them."""

    name: str
    type: str
    flags: str


@dataclass(frozen=True, slots=True)
class InstalledHook:
    """A hook: its attributes as PBS writes them, its program, and its settings (JSON)."""

    name: str
    attributes: Mapping[str, str]
    program: str = field(repr=False)
    settings: str

    @property
    def ours(self) -> bool:
        """Whether virtcloud wrote it. One without a program is an installation that was interrupted."""
        return not self.program.strip() or self.program.startswith(HOOK_MARK)

    @property
    def digest(self) -> str:
        """What tells one version of its program from another."""
        return hashlib.sha256(self.program.encode()).hexdigest()[:12] if self.program.strip() else "empty"


RESOURCES = (PbsResource("vcluster", "string", "m"), PbsResource("vcluster_spec", "string", "im"))
"""``m`` lets a job's hosts see it; ``i`` hides it from users."""

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
"""``fail_action`` answers a hook that cannot run or does not end, never one that refuses a job: such a host would fail
job after job, so that it gets none until its MoM has been started anew."""


def build_hook(name: str, program: str, settings: Mapping[str, Any]) -> InstalledHook:
    """Give the hook of this name as it must be: ``program`` is what the bundle gives."""
    digest = hashlib.sha256(program.encode()).hexdigest()[:12]
    text = f"{HOOK_MARK}; changes are lost. Bundle {digest}.\n{program}"
    common = {"type": "site", "enabled": "true", "user": "pbsadmin", "order": HOOK_ORDER}
    attributes = {**common, "event": ",".join(HOOK_EVENTS[name]), **HOOK_ATTRIBUTES[name]}
    return InstalledHook(name, attributes, text, json.dumps(dict(settings), indent=1, sort_keys=True) + "\n")


OBJECT_HEADER = re.compile(r"(Hook|Resource|Node|Server) (\S+)")


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server has: all resources of its own, those hooks that bear our names."""

    resources: Mapping[str, PbsResource] = field(default_factory=dict)
    hooks: Mapping[str, InstalledHook] = field(default_factory=dict)


def parse_qmgr_list(text: str) -> dict[str, dict[str, str]]:
    """Read ``list hook``, ``list resource`` or the like: attributes by object. Long values go on after a tab."""
    found: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    for line in _unfold_lines(text):
        head = OBJECT_HEADER.fullmatch(line.strip())
        if head is not None and not line.startswith(" "):
            attributes = found[head.group(2)] = {}
        elif " = " in line:
            key, _, value = line.partition(" = ")
            attributes[key.strip()] = value.strip().strip('"')
    return found


def _unfold_lines(text: str) -> Iterator[str]:
    whole = ""
    for line in text.splitlines():
        if line.startswith("\t"):
            whole += line.strip()
            continue
        yield whole
        whole = line.rstrip()
    yield whole


def parse_resources(text: str) -> dict[str, PbsResource]:
    """Read ``list resource``."""
    return {
        name: PbsResource(name, one.get("type", ""), "".join(sorted(one.get("flag", ""))))
        for name, one in parse_qmgr_list(text).items()
    }


PROGRAM_TYPE, SETTINGS_TYPE = "application/x-python", "application/x-config"


@dataclass(frozen=True, slots=True)
class QmgrLine:
    """A line for qmgr, such as ``set hook H alarm = 5``."""

    line: str


@dataclass(frozen=True, slots=True)
class QmgrImport:
    """A hook's program or settings to be imported."""

    hook: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class InstallationChange:
    """One change: what a person reads, and what qmgr is told, in this order."""

    says: str
    requests: tuple[QmgrLine | QmgrImport, ...]


def compute_installation(
    resources: Sequence[PbsResource], hooks: Sequence[InstalledHook], found: ServerState
) -> list[InstallationChange]:
    """Give what is to be changed, nothing when all is there. Raises :class:`Unsafe` for what others made."""
    for one in hooks:
        _refuse_foreign(found.hooks.get(one.name))
    return [
        *(change for one in resources for change in _compare_resource(one, found.resources.get(one.name))),
        *(change for one in hooks for change in _compare_hook(one, found.hooks.get(one.name))),
    ]


def compute_removal(resources: Sequence[PbsResource], found: ServerState) -> list[InstallationChange]:
    """Give what is to be removed: our hooks, and resources that are exactly as we make them.

    Raises :class:`Unsafe` for a hook of our name that is not ours; a resource of another type is left alone.
    """
    for one in found.hooks.values():
        _refuse_foreign(one)
    return [
        *(InstallationChange(f"delete hook {name}", (QmgrLine(f"delete hook {name}"),)) for name in found.hooks),
        *(
            InstallationChange(f"delete resource {one.name}", (QmgrLine(f"delete resource {one.name}"),))
            for one in resources
            if found.resources.get(one.name) == one
        ),
    ]


def _refuse_foreign(has: InstalledHook | None) -> None:
    if has is not None and not has.ours:
        raise Unsafe(
            f"hook {has.name}: expected one that 'virtcloud pbs install' wrote, got another's; it was left alone. "
            f"Look at it (qmgr -c 'print hook {has.name}'), and delete it if nobody needs it"
        )


def _compare_resource(one: PbsResource, has: PbsResource | None) -> Iterator[InstallationChange]:
    if has is None:
        line = f"create resource {one.name} type={one.type},flag={one.flags}"
        yield InstallationChange(line, (QmgrLine(line),))
    elif has != one:
        raise Unsafe(
            f"resource {one.name}: expected type={one.type}, flag={one.flags}, got type={has.type}, "
            f"flag={has.flags or 'none'}, which is not ours; it was left alone. If nothing else uses it, delete it "
            f"(qmgr -c 'delete resource {one.name}') and install again"
        )


def _compare_hook(one: InstalledHook, has: InstalledHook | None) -> Iterator[InstallationChange]:
    if has is None:
        yield InstallationChange(f"create hook {one.name}", (QmgrLine(f"create hook {one.name}"),))
        has = InstalledHook(one.name, {}, "", "")
    yield from _compare_settings(one, has)
    yield from _compare_attributes(one, has)
    if one.program != has.program:
        words = f"hook {one.name}: program {has.digest} becomes {one.digest}"
        yield InstallationChange(words, (QmgrImport(one.name, PROGRAM_TYPE, one.program),))


def _compare_settings(one: InstalledHook, has: InstalledHook) -> Iterator[InstallationChange]:
    """Compare settings; they are changed before the program, since a new one may not know the old settings."""
    if one.settings == has.settings:
        return
    lines = difflib.unified_diff(_format_settings(has.settings), _format_settings(one.settings), lineterm="", n=0)
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@")) and line[1:].strip(" {},")]
    words = "\n".join([f"hook {one.name}: settings", *(f"  {line}" for line in shown)])
    yield InstallationChange(words, (QmgrImport(one.name, SETTINGS_TYPE, one.settings),))


def _format_settings(settings: str) -> list[str]:
    """Give settings a line for each key, so that order and spaces are no difference."""
    try:
        read = json.loads(settings or "{}")
    except ValueError:
        return settings.splitlines()
    return [f"{key} = {json.dumps(read[key])}" for key in sorted(read)]


def _compare_attributes(one: InstalledHook, has: InstalledHook) -> Iterator[InstallationChange]:
    """Compare attributes, the events first: PBS refuses a fail_action without them.

    They come before the program. Where ``freq`` of a hook that has one is set, OpenPBS 23.06 lets its server run it,
    too, and does not forget that when the hook is deleted: pbs_server then does nothing but complain in its log.
    """
    for name in sorted(one.attributes, key=lambda key: (key != "event", key)):
        wanted, got = one.attributes[name], has.attributes.get(name, "")
        if _split_words(wanted) != _split_words(got):
            line = (
                f'set hook {one.name} {name} = "{wanted}"'
                if "," in wanted
                else f"set hook {one.name} {name} = {wanted}"
            )
            was = f" (was {got})" if got else ""
            yield InstallationChange(f"hook {one.name}: {name} = {wanted}{was}", (QmgrLine(line),))


def _split_words(value: str) -> frozenset[str]:
    return frozenset(value.split(","))
