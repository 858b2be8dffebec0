"""PURE. What an OpenPBS server must have for virtcloud: two resources and two hooks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "# Written by 'virtcloud pbs install'"
"""How the first line of our hooks begins, by which they are told from others of the same name."""

LATE = "900"
"""Ours come after other sites' hooks (PBS: 1 to 1000, pbs_cgroups has 100): those see jobs as they always did, a job
that they refuse never asks for a network, and none of them waits behind our barrier."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the server; ``flags`` in alphabetical order, as PBS lists them."""

    name: str
    type: str
    flags: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook: its attributes as PBS writes them, its program, and its settings (JSON)."""

    name: str
    attributes: Mapping[str, str]
    program: str = field(repr=False)
    settings: str

    @property
    def ours(self) -> bool:
        """Whether virtcloud wrote it. One without a program is an installation that was interrupted."""
        return not self.program.strip() or self.program.startswith(MARK)

    @property
    def digest(self) -> str:
        """What tells one version of its program from another."""
        return hashlib.sha256(self.program.encode()).hexdigest()[:12] if self.program.strip() else "empty"


RESOURCES = (Resource("vcluster", "string", "m"), Resource("vcluster_spec", "string", "im"))
"""``m`` lets a job's hosts see it; ``i`` hides it from users."""

SERVER, MOM = "virtcloud_server", "virtcloud_mom"

EVENTS: Mapping[str, tuple[str, ...]] = {
    SERVER: ("queuejob", "modifyjob", "runjob", "jobobit"),
    MOM: (
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

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    SERVER: {"alarm": "5", "fail_action": "none"},
    MOM: {"alarm": "600", "freq": "60", "fail_action": "offline_vnodes,clear_vnodes_upon_recovery"},
}
"""``fail_action`` answers a hook that cannot run or does not end, never one that refuses a job: such a host would fail
job after job, so that it gets none until its MoM has been started anew."""


def hook(name: str, program: str, settings: Mapping[str, Any]) -> Hook:
    """Give the hook of this name as it must be: ``program`` is what the bundle gives."""
    digest = hashlib.sha256(program.encode()).hexdigest()[:12]
    text = f"{MARK}; changes are lost. Bundle {digest}.\n{program}"
    common = {"type": "site", "enabled": "true", "user": "pbsadmin", "order": LATE}
    attributes = {**common, "event": ",".join(EVENTS[name]), **ATTRIBUTES[name]}
    return Hook(name, attributes, text, json.dumps(dict(settings), indent=1, sort_keys=True) + "\n")
