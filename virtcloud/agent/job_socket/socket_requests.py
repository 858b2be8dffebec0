"""The requests of the job socket: parsing and validation. Pure.

Hooks and scripts of a batch system connect to an AF_UNIX stream socket (setting `socket`), as root or as a user in
`socket_uids`. The kernel reports the caller's user ID to the agent. A job's user may send `cancel` for the job's run.
A connection carries one request and one answer. The request is a JSON object on one line. The answer is a JSON object
on one line too. Every request is idempotent. The agent writes the effect of a request to the disk before it sends the
answer, so the effect is not lost when the agent is killed.

`cluster` is the key of the job's cluster. `attempt` is the number of the job's run. A batch system that does not count
runs sends 0. A run with a higher attempt number replaces the recorded run. A request with a lower attempt number is
refused (`gone`) and changes nothing. If `user` differs from the user of the recorded job, the request `up` replaces the
recorded job, and all other requests are refused.
"""

import json
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.validation_errors import explain_validation_error, list_validation_errors
from virtcloud.model.values import ClusterKey

Key = Annotated[ClusterKey, Field(description="The cluster's key.")]
Attempt = Annotated[int, Field(ge=0, lt=1 << 31, description="The attempt number of the job's run.")]
User = Annotated[
    Annotated[str, Field(min_length=1, max_length=64)] | None,
    Field(
        description="The job's user. A reinstalled batch system may use a job's ID again, for a job of another user. "
        "The agent then distinguishes the two jobs by the user."
    ),
]
MAX_STATE_WAIT_S, MAX_REMOVE_WAIT_S = 30, 600
ERROR_SLUGS = {
    "forbidden": "the caller may not send this request",
    "bad-input": "the request is malformed; `detail` names each fault",
    "gone": "the key belongs to a later attempt or to another user's job, or the run was removed from this host; "
    "nothing was changed",
    "not-found": "`state` for a run that was never announced to this agent by `up`",
    "attempt-waits": "`up` with attempt 0 while the former run of the job is still being removed: retry",
    "refused": "the job's record cannot be written; `detail` has the error",
    "too-many-requests": "too many requests are waiting: retry",
    "error": "internal error in the agent: retry, and read the agent's log",
}


class JobRunId(NamedTuple):
    """The identification of a job's run. ``user`` is None if the job's user is unknown."""

    cluster: ClusterKey
    attempt: int
    user: str | None = None


class _RunRequest(Document):
    """A request about one run of a job."""

    cluster: Key
    attempt: Attempt
    user: User = None

    @property
    def run(self) -> JobRunId:
        """The identification of the run."""
        return JobRunId(self.cluster, self.attempt, self.user)


class UpRequest(_RunRequest):
    """A run of a job has started on this host. The agent then immediately fetches the wanted state of this host."""

    answer: ClassVar[str] = "nothing."

    do: Literal["up"]
    head: bool = Field(default=False, description="The job's script runs on this host.")

    @model_validator(mode="after")
    def _has_a_user_where_the_script_runs(self) -> Self:
        if self.head and self.user is None:
            raise BadInput("user: expected the job's user, since head is true; got nothing")
        return self


class StateRequest(_RunRequest):
    """Returns whether the job's script can start."""

    answer: ClassVar[str] = (
        "`state`, `missing` (a sentence for each missing element or guest), `reason` (or null), `facts`. The state "
        "`waiting` is sent when `missing` differs from the last answer, or after `wait` seconds; other states are sent "
        "immediately. `up`: the cluster is active at SBF, and each of its guests with an address answers this host on "
        "the cluster's network; `facts` are environment variables for the script, if the script runs on this host. "
        "`cancelled`: the run was cancelled by `cancel`. `failed`: the cluster cannot be set up, for the given "
        "`reason`. `ended`: the run was ended by `remove`, the user, the end of the lease or an administrator."
    )

    do: Literal["state"]
    wait: Annotated[float, Field(ge=0, le=MAX_STATE_WAIT_S, allow_inf_nan=False)] = Field(
        0, description=f"Longest time until the answer, in seconds; at most {MAX_STATE_WAIT_S}."
    )


class CancelRequest(_RunRequest):
    """The run is cancelled. After this request, `state` answers `cancelled`. The cluster remains until `remove`."""

    answer: ClassVar[str] = "nothing."

    do: Literal["cancel"]
    reason: Annotated[str, Field(max_length=1000)] = Field("", description="Reason that the waiting callers receive.")


class RemoveRequest(_RunRequest):
    """The run is over. The agent removes the job's files and requests the end of the cluster from SBF, with retries."""

    answer: ClassVar[str] = (
        "`gone` (true if this host carries nothing of the run), `missing` (a sentence for each part that remains). "
        "For an unknown cluster, `gone` is true."
    )

    do: Literal["remove"]
    wait: Annotated[float, Field(ge=0, le=MAX_REMOVE_WAIT_S, allow_inf_nan=False)] = Field(
        0, description=f"Longest time to wait until the run is gone, in seconds; at most {MAX_REMOVE_WAIT_S}."
    )


class RunningRequest(Document):
    """The list of all jobs of the batch system on this host.

    If a run is missing from every list during `timing.job_grace` seconds, the agent ends the run. A request `up` or
    `state` for the run restarts this time. If no list arrives for two minutes, this time starts again at the next list.
    If the job's script runs on another host, this agent only deletes the record, because the other host ends the
    cluster. The lists have no effect on runs with the attempt number 0.
    """

    answer: ClassVar[str] = "nothing."

    do: Literal["running"]
    clusters: tuple[tuple[ClusterKey, Attempt], ...] = Field(
        description="For each job a pair: the cluster's key and the attempt number."
    )


class ListRequest(Document):
    """Returns all runs that this agent has recorded. The agent does not call SBF."""

    answer: ClassVar[str] = (
        "`clusters`: for each run its `cluster`, `attempt`, `state` (`up` if a request `state` has found the "
        "cluster up), `head`, `user`, and `leaving` (true while the run is being removed). Removed runs are listed as "
        "`ended` for a week."
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
    """Parse a request. Raise BadInput with a one-line message that lists every fault."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"expected one JSON object on one line: {error}") from error
    if not isinstance(document, dict):
        raise BadInput(f"expected one JSON object on one line, got {type(document).__name__}")
    kind = REQUEST_KINDS.get(str(document.get("do")))
    if kind is None:
        raise BadInput(f"do: expected one of {', '.join(REQUEST_KINDS)}, got {document.get('do')!r}")
    try:
        return kind.model_validate_json(line, strict=True)
    except ValidationError as error:
        raise BadInput("; ".join(_format_fault(fault) for fault in list_validation_errors(error))) from error


def _format_fault(fault: ErrorDetails) -> str:
    key = ".".join(map(str, fault["loc"]))
    return f"{key}: {explain_validation_error(fault)}" if key else explain_validation_error(fault)
