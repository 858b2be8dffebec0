"""PURE. From what a PBS server has to what it must have: the changes, each in words and as requests to qmgr."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from virtcloud.model.errors import Unsafe
from virtcloud.pbs.found import Found
from virtcloud.pbs.wanted import Hook, Resource

PROGRAM, SETTINGS = "application/x-python", "application/x-config"


@dataclass(frozen=True, slots=True)
class Say:
    """A line for qmgr, such as ``set hook H alarm = 5``."""

    line: str


@dataclass(frozen=True, slots=True)
class Put:
    """A hook's program or settings to be imported."""

    hook: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what a person reads, and what qmgr is told, in this order."""

    says: str
    requests: tuple[Say | Put, ...]


def install(resources: Sequence[Resource], hooks: Sequence[Hook], found: Found) -> list[Change]:
    """Give what is to be changed, nothing when all is there. Raises :class:`Unsafe` for what others made."""
    for one in hooks:
        _refuse_foreign(found.hooks.get(one.name))
    return [
        *(change for one in resources for change in _resource(one, found.resources.get(one.name))),
        *(change for one in hooks for change in _hook(one, found.hooks.get(one.name))),
    ]


def uninstall(resources: Sequence[Resource], found: Found) -> list[Change]:
    """Give what is to be removed: our hooks, and resources that are exactly as we make them.

    Raises :class:`Unsafe` for a hook of our name that is not ours; a resource of another type is left alone.
    """
    for one in found.hooks.values():
        _refuse_foreign(one)
    return [
        *(Change(f"delete hook {name}", (Say(f"delete hook {name}"),)) for name in found.hooks),
        *(
            Change(f"delete resource {one.name}", (Say(f"delete resource {one.name}"),))
            for one in resources
            if found.resources.get(one.name) == one
        ),
    ]


def _refuse_foreign(has: Hook | None) -> None:
    if has is not None and not has.ours:
        raise Unsafe(
            f"hook {has.name}: expected one that 'virtcloud pbs install' wrote, got another's; it was left alone. "
            f"Look at it (qmgr -c 'print hook {has.name}'), and delete it if nobody needs it"
        )


def _resource(one: Resource, has: Resource | None) -> Iterator[Change]:
    if has is None:
        line = f"create resource {one.name} type={one.type},flag={one.flags}"
        yield Change(line, (Say(line),))
    elif has != one:
        raise Unsafe(
            f"resource {one.name}: expected type={one.type}, flag={one.flags}, got type={has.type}, "
            f"flag={has.flags or 'none'}, which is not ours; it was left alone. If nothing else uses it, delete it "
            f"(qmgr -c 'delete resource {one.name}') and install again"
        )


def _hook(one: Hook, has: Hook | None) -> Iterator[Change]:
    if has is None:
        yield Change(f"create hook {one.name}", (Say(f"create hook {one.name}"),))
        has = Hook(one.name, {}, "", "")
    yield from _settings(one, has)
    yield from _attributes(one, has)
    if one.program != has.program:
        words = f"hook {one.name}: program {has.digest} becomes {one.digest}"
        yield Change(words, (Put(one.name, PROGRAM, one.program),))


def _settings(one: Hook, has: Hook) -> Iterator[Change]:
    """Compare settings; they are changed before the program, since a new one may not know the old settings."""
    if one.settings == has.settings:
        return
    lines = difflib.unified_diff(_lines(has.settings), _lines(one.settings), lineterm="", n=0)
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@")) and line[1:].strip(" {},")]
    words = "\n".join([f"hook {one.name}: settings", *(f"  {line}" for line in shown)])
    yield Change(words, (Put(one.name, SETTINGS, one.settings),))


def _lines(settings: str) -> list[str]:
    """Give settings a line for each key, so that order and spaces are no difference."""
    try:
        read = json.loads(settings or "{}")
    except ValueError:
        return settings.splitlines()
    return [f"{key} = {json.dumps(read[key])}" for key in sorted(read)]


def _attributes(one: Hook, has: Hook) -> Iterator[Change]:
    """Compare attributes, the events first: PBS refuses a fail_action without them.

    They come before the program. Where ``freq`` of a hook that has one is set, OpenPBS 23.06 lets its server run it,
    too, and does not forget that when the hook is deleted: pbs_server then does nothing but complain in its log.
    """
    for name in sorted(one.attributes, key=lambda key: (key != "event", key)):
        wanted, got = one.attributes[name], has.attributes.get(name, "")
        if _words(wanted) != _words(got):
            line = (
                f'set hook {one.name} {name} = "{wanted}"'
                if "," in wanted
                else f"set hook {one.name} {name} = {wanted}"
            )
            was = f" (was {got})" if got else ""
            yield Change(f"hook {one.name}: {name} = {wanted}{was}", (Say(line),))


def _words(value: str) -> frozenset[str]:
    return frozenset(value.split(","))
