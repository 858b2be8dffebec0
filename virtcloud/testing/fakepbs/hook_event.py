"""What a hook is run on: an event, with its job, as one would write it down.

What came of one run of a hook.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from virtcloud.testing.fakepbs.interpreter.events import EVENTS, PARAMETERS, SERVER_EVENTS

ALARM_S = 30.0
"""PBS's own, where ``set hook H alarm=`` says nothing."""
CUSTOM_RESOURCES = {"vcluster": "string", "vcluster_spec": "string"}


@dataclass(frozen=True, slots=True)
class HookJob:
    """A job: ``attributes`` and ``resources`` are written as PBS writes them, ``{"euser": "alice"}``.

    ``first_host`` says whether the hook runs where the job's script does (``in_ms_mom()``).
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
    """A vnode and what it has."""

    name: str
    state: int = 0
    resources: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HookEvent:
    """One event: ``kind`` is PBS's name of it, such as ``execjob_begin``.

    ``config`` is the text of the hook's configuration (none: ``hook_config_filename`` is None).
    ``custom_resources`` are the site's own, with the ``type`` each was created with. ``alarm`` is in seconds.
    ``server_jobs`` and ``server_vnodes`` are what ``pbs.server()`` knows. Raises ValueError for a kind that
    cannot be tried here, and for one that wants a job and has none.
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
        """Refuse what cannot be tried."""
        if self.kind not in PARAMETERS:
            known = "no event of PBS" if self.kind not in EVENTS else "not an event that can be tried"
            raise ValueError(f"event {self.kind}: {known}; expected one of {', '.join(PARAMETERS)}")
        for name in ("job", "job_o"):
            if name in PARAMETERS[self.kind] and getattr(self, name) is None:
                raise ValueError(f"event {self.kind}: expected a {name}, got none")

    def told(self, config_file: Path | None) -> dict[str, object]:
        """Give it as the interpreter is told it."""
        at_server = self.kind in SERVER_EVENTS
        facts = asdict(self) | {"config_file": config_file and str(config_file)}
        facts["requestor"] = self.requestor or ("Scheduler" if self.kind == "runjob" else "pbs_mom")
        facts["requestor_host"] = self.requestor_host or (self.server if at_server else self.node)
        return facts


class HookFailure(StrEnum):
    """How a hook can end that neither accepts nor rejects; for PBS each is a rejection without a word."""

    EXCEPTION = "exception"
    ALARM = "alarm"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """What PBS would do next, and what the hook left.

    ``changed`` has the attributes of the job that the hook set, as PBS writes them: ``{"Hold_Types": "s",
    "Resource_List.place": "scatter:excl", "Variable_List.A": "1"}``. ``rerun`` and ``delete`` say that the hook
    asked for that. ``env``, ``argv`` and ``progname`` are those of a launch after the hook. ``log`` has lines as
    (level, text), ``job_log`` lines as (job, text). ``seconds`` is the time the hook itself took.
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
