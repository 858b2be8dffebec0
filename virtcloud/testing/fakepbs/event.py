"""What a hook is run on: an event, with its job, as one would write it down."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from virtcloud.testing.fakepbs.interpreter.events import EVENTS, PARAMETERS, SERVER_EVENTS

ALARM_S = 30.0
"""PBS's own, where ``set hook H alarm=`` says nothing."""
CUSTOM = {"vcluster": "string", "vcluster_spec": "string"}


@dataclass(frozen=True, slots=True)
class Job:
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
class Vnode:
    """A vnode and what it has."""

    name: str
    state: int = 0
    resources: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: ``kind`` is PBS's name of it, such as ``execjob_begin``.

    ``config`` is the text of the hook's configuration (none: ``hook_config_filename`` is None).
    ``custom_resources`` are the site's own, with the ``type`` each was created with. ``alarm`` is in seconds.
    ``server_jobs`` and ``server_vnodes`` are what ``pbs.server()`` knows. Raises ValueError for a kind that
    cannot be tried here, and for one that wants a job and has none.
    """

    kind: str
    job: Job | None = None
    job_o: Job | None = None
    job_list: tuple[Job, ...] = ()
    vnodes: tuple[Vnode, ...] = ()
    config: str | None = None
    node: str = "n1"
    server: str = "pbssrv"
    server_jobs: tuple[Job, ...] = ()
    server_vnodes: tuple[Vnode, ...] = ()
    requestor: str = ""
    requestor_host: str = ""
    hook_name: str = "hook"
    alarm: float = ALARM_S
    custom_resources: Mapping[str, str] = field(default_factory=lambda: dict(CUSTOM))
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
