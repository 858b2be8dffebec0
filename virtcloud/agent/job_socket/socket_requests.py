"""PURE. What may be asked on the agent's socket, checked before anything is done.

A batch system's hooks and scripts ask on an AF_UNIX stream socket (setting `socket`), as root or as a user in
`socket_uids`; the kernel says who asks. A job's own user may `cancel` its run. A connection takes one request, one JSON
object on one line, and gives one answer of the same kind. Every request may be repeated, and what it says is on disk
before it is answered: an agent that is killed goes on where it was.

`cluster` is the key of the job's cluster, `attempt` counts the runs of the job up; 0 is of a batch system that does not
count them. A higher attempt takes the place of a lower one. One of a lower one is refused (`gone`), changing nothing.
So is one of another `user` than the job's; only an `up` takes the place of another user's job.
"""

import json
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from virtcloud.model.document import Document, explain_validation_error, list_validation_errors
from virtcloud.model.errors import BadInput
from virtcloud.model.values import ClusterKey

Key = Annotated[ClusterKey, Field(description="The cluster's key.")]
Attempt = Annotated[int, Field(ge=0, lt=1 << 31, description="The run of the job.")]
User = Annotated[
    Annotated[str, Field(min_length=1, max_length=64)] | None,
    Field(description="Whose job it is. A batch system that was set up anew gives numbers of former jobs again."),
]
LONGEST_STATE_S, LONGEST_REMOVE_S = 30, 600
ERROR_SLUGS = {
    "forbidden": "who asks may not",
    "bad-input": "the request is none; `detail` names each fault",
    "gone": "a later attempt or another user's job was seen since, or this one was removed here; nothing was changed",
    "not-found": "`state` of a run that was never announced here by `up`",
    "attempt-waits": "`up` while the former run of a job whose runs are not counted is still being removed: ask again",
    "refused": "it cannot be written down here; `detail` says why",
    "too-many-requests": "too many wait here already: ask again",
    "error": "internal error in the agent: retry, and read its log",
}


class JobRunId(NamedTuple):
    """A run of a job, as it is told from the others; ``user`` is whose, where that was said."""

    cluster: ClusterKey
    attempt: int
    user: str | None = None


class _RunRequest(Document):
    """What concerns one run of a job."""

    cluster: Key
    attempt: Attempt
    user: User = None

    @property
    def run(self) -> JobRunId:
        """Which run it is."""
        return JobRunId(self.cluster, self.attempt, self.user)


class UpRequest(_RunRequest):
    """A run of a job has come to this host. The agent looks at once what SBF wants of it."""

    answer: ClassVar[str] = "nothing."

    do: Literal["up"]
    head: bool = Field(default=False, description="The job's script runs on this host.")

    @model_validator(mode="after")
    def _has_a_user_where_the_script_runs(self) -> Self:
        if self.head and self.user is None:
            raise BadInput("user: expected whose job it is, since head is true, got nothing")
        return self


class StateRequest(_RunRequest):
    """How far the cluster is: whether a job's script may start."""

    answer: ClassVar[str] = (
        "`state`, `missing` (what is waited for, a sentence each), `reason` (or null), `facts`. `waiting` is answered "
        "when what is missing is something else than was answered last, or after `wait` seconds; the others at once. "
        "`up`: SBF says that the cluster is active, and every guest of it that has an address answers on its network, "
        "as seen from this host; `facts` are the environment of the script, where it runs here. `cancelled`: by "
        "`cancel`. `failed`: it cannot be set up, `reason` says why. `ended`: by `remove`, its user, its lease or an "
        "administrator."
    )

    do: Literal["state"]
    wait: Annotated[float, Field(ge=0, le=LONGEST_STATE_S, allow_inf_nan=False)] = Field(
        0, description=f"Seconds that the answer may take, at most {LONGEST_STATE_S}."
    )


class CancelRequest(_RunRequest):
    """The run is given up: from now on `state` says so. The cluster stays until `remove`."""

    answer: ClassVar[str] = "nothing."

    do: Literal["cancel"]
    reason: Annotated[str, Field(max_length=1000)] = Field("", description="Why, for who waits.")


class RemoveRequest(_RunRequest):
    """The run is over: SBF is asked to end its cluster, again and again while it is away. The job's files go."""

    answer: ClassVar[str] = (
        "`gone` (this host carries nothing of it), `missing` (what keeps it here). A cluster that nobody knows is gone."
    )

    do: Literal["remove"]
    wait: Annotated[float, Field(ge=0, le=LONGEST_REMOVE_S, allow_inf_nan=False)] = Field(
        0, description=f"Seconds to wait until it is gone, at most {LONGEST_REMOVE_S}."
    )


class RunningRequest(Document):
    """What the batch system has on this host now.

    A run whose script is here and that is missed twice, `timing.job_grace` seconds apart, is removed; not while
    somebody asks for its `state`. One whose script is elsewhere is forgotten: the host of the script ends it.
    """

    answer: ClassVar[str] = "nothing."

    do: Literal["running"]
    clusters: tuple[tuple[ClusterKey, Attempt], ...] = Field(description="Pairs of key and attempt, of every job.")


class ListRequest(Document):
    """What is known here; nobody else is asked."""

    answer: ClassVar[str] = (
        "`clusters`: of each its `cluster`, `attempt`, `state` (`up` once that was answered), `head`, `user`, and "
        "whether it is `leaving`. Runs that are gone are listed as `ended` for a week."
    )

    do: Literal["list"]


SocketRequest = UpRequest | StateRequest | CancelRequest | RemoveRequest | RunningRequest | ListRequest
REQUEST_KINDS: dict[str, type[SocketRequest]] = {
    "up": UpRequest,
    "state": StateRequest,
    "cancel": CancelRequest,
    "remove": RemoveRequest,
    "running": RunningRequest,
    "list": ListRequest,
}


EXAMPLE_SESSION = """\
> {"do": "up", "cluster": "12.pbs", "attempt": 1, "head": true, "user": "alice"}
< {"ok": true}
> {"do": "state", "cluster": "12.pbs", "attempt": 1, "wait": 30}
< {"ok": true, "state": "waiting", "missing": ["guest g2 does not answer at 10.0.0.2"], "reason": null, "facts": {}}
> {"do": "remove", "cluster": "12.pbs", "attempt": 1, "wait": 60}
< {"ok": true, "gone": true, "missing": []}
"""


def parse_socket_request(line: bytes) -> SocketRequest:
    """Read a request; raises :class:`BadInput` with every fault, in one line."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"expected one JSON object on one line: {error}") from error
    if not isinstance(said, dict):
        raise BadInput(f"expected one JSON object on one line, got {type(said).__name__}")
    kind = REQUEST_KINDS.get(str(said.get("do")))
    if kind is None:
        raise BadInput(f"do: expected one of {', '.join(REQUEST_KINDS)}, got {said.get('do')!r}")
    try:
        return kind.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise BadInput("; ".join(_format_fault(one) for one in list_validation_errors(error))) from error


def _format_fault(one: ErrorDetails) -> str:
    where = ".".join(map(str, one["loc"]))
    return f"{where}: {explain_validation_error(one)}" if where else explain_validation_error(one)
