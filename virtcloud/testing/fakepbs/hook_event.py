"""The input of a hook (an event with its job) and its outcome (the actions of the hook)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from virtcloud.testing.fakepbs.interpreter.pbs_events import EVENTS, PARAMETERS, SERVER_EVENTS

ALARM_S = 30.0
"""PBS's default value of a hook's attribute ``alarm``, the time limit in seconds."""
CUSTOM_RESOURCES = {"vcluster": "string", "vcluster_spec": "string"}


@dataclass(frozen=True, slots=True)
class HookJob:
    """A job: ``attributes`` and ``resources`` in PBS's notation, such as ``{"euser": "alice"}``.

    ``first_host``: whether the hook runs on the host of the job's script (``in_ms_mom()``).
    """

    id: str
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    resources: Mapping[str, str | int] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    first_host: bool = False
    stdout_file: str | None = None
    stderr_file: str | None = None


@dataclass(frozen=True, slots=True)
class HookVnode:
    """A vnode and its resources."""

    name: str
    state: int = 0
    resources: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One event. ``kind`` is the event's name in PBS, such as ``execjob_begin``.

    - ``config``: the text of the hook's configuration; if None, ``hook_config_filename`` is None.
    - ``custom_resources``: the types of resources that the site defines.
    - ``alarm``: the hook's time limit in seconds.
    - ``server_jobs`` and ``server_vnodes``: the content of ``pbs.server()``.

    Raise ValueError if the kind is unsupported, or if a job that the kind requires is missing.
    """

    kind: str
    job: HookJob | None = None
    job_o: HookJob | None = None
    job_list: tuple[HookJob, ...] = ()
    vnodes: tuple[HookVnode, ...] = ()
    config: str | None = None
    node: str = "n1"
    server: str = "pbssrv"
    server_jobs: tuple[HookJob, ...] = ()
    server_vnodes: tuple[HookVnode, ...] = ()
    requestor: str = ""
    requestor_host: str = ""
    hook_name: str = "hook"
    alarm: float = ALARM_S
    custom_resources: Mapping[str, str] = field(default_factory=lambda: dict(CUSTOM_RESOURCES))
    progname: str = "/bin/sh"
    argv: tuple[str, ...] = ("-sh",)
    env: Mapping[str, str] = field(default_factory=dict)
    pbs_conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the kind, and that the event has the jobs that this kind requires."""
        if self.kind not in PARAMETERS:
            problem = "not an event of PBS" if self.kind not in EVENTS else "not a supported event"
            raise ValueError(f"event {self.kind}: {problem}; expected one of {', '.join(PARAMETERS)}")
        for name in ("job", "job_o"):
            if name in PARAMETERS[self.kind] and getattr(self, name) is None:
                raise ValueError(f"event {self.kind}: expected a {name}, got none")

    def as_json(self, config_file: Path | None) -> dict[str, object]:
        """Return the event as a dictionary, which the caller writes as JSON for the interpreter."""
        at_server = self.kind in SERVER_EVENTS
        description = asdict(self) | {"config_file": config_file and str(config_file)}
        description["requestor"] = self.requestor or ("Scheduler" if self.kind == "runjob" else "pbs_mom")
        description["requestor_host"] = self.requestor_host or (self.server if at_server else self.node)
        return description


class HookFailure(StrEnum):
    """Ways in which a hook ends before it accepts or rejects an event. PBS then rejects the event without a message."""

    EXCEPTION = "exception"
    ALARM = "alarm"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """The outcome of a hook: the hook's changes, its log, and whether the hook accepted the event.

    - ``changed``: the job's attributes that the hook set, in PBS's notation: ``{"Hold_Types": "s",
      "Resource_List.place": "scatter:excl", "Variable_List.A": "1"}``.
    - ``rerun`` and ``delete``: whether the hook requested these actions.
    - ``env``, ``argv`` and ``progname``: the parameters of a launch event after the hook.
    - ``log``: lines as (level, text). ``job_log``: lines as (job, text).
    - ``seconds``: the run time of the hook.
    """

    accepted: bool
    message: str | None = None
    failure: HookFailure | None = None
    traceback: str | None = None
    changed: Mapping[str, str] = field(default_factory=dict)
    rerun: bool = False
    delete: bool = False
    progname: str | None = None
    argv: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    log: tuple[tuple[int, str], ...] = ()
    job_log: tuple[tuple[str, str], ...] = ()
    printed: str = ""
    seconds: float = 0.0
