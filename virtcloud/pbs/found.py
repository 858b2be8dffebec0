"""PURE. Reads what ``qmgr`` prints of hooks and resources."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from virtcloud.pbs.wanted import Hook, Resource

HEAD = re.compile(r"(Hook|Resource|Node|Server) (\S+)")


@dataclass(frozen=True, slots=True)
class Found:
    """What a server has: all resources of its own, those hooks that bear our names."""

    resources: Mapping[str, Resource] = field(default_factory=dict)
    hooks: Mapping[str, Hook] = field(default_factory=dict)


def objects(text: str) -> dict[str, dict[str, str]]:
    """Read ``list hook``, ``list resource`` or the like: attributes by object. Long values go on after a tab."""
    found: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    for line in _unfolded(text):
        head = HEAD.fullmatch(line.strip())
        if head is not None and not line.startswith(" "):
            attributes = found[head.group(2)] = {}
        elif " = " in line:
            key, _, value = line.partition(" = ")
            attributes[key.strip()] = value.strip().strip('"')
    return found


def _unfolded(text: str) -> Iterator[str]:
    whole = ""
    for line in text.splitlines():
        if line.startswith("\t"):
            whole += line.strip()
            continue
        yield whole
        whole = line.rstrip()
    yield whole


def resources(text: str) -> dict[str, Resource]:
    """Read ``list resource``."""
    return {
        name: Resource(name, one.get("type", ""), "".join(sorted(one.get("flag", ""))))
        for name, one in objects(text).items()
    }
