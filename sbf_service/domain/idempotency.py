"""Idempotency: the effect of a repeated or late call for a key (DESIGN.md §3, §7.7). Pure."""

from dataclasses import dataclass
from typing import Final, Protocol

from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import AttemptWaits, Conflict, Gone, OtherSpec


@dataclass(frozen=True, slots=True)
class LatestAttempt:
    """The latest attempt of a key.

    ``shown`` is the spec that clients receive, if the spec was changed after the creation.
    """

    attempt: int
    state: ClusterState
    spec: ClusterSpec
    shown: ClusterSpec | None = None


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """A cluster must be created."""

    attempt: int


@dataclass(frozen=True, slots=True)
class NoChange:
    """The call repeats the latest attempt, so nothing changes."""


@dataclass(frozen=True, slots=True)
class AttemptBlocked:
    """A new attempt must wait until the draining cluster of the former attempt has ended."""

    message: str


@dataclass(frozen=True, slots=True)
class AttemptFence:
    """The identity of the cluster that a caller means; None stands for unknown.

    ``id`` is exact. ``attempt`` and ``owner`` are for callers that do not know the ID, such as hosts of a batch system.
    """

    attempt: int | None = None
    owner: str | None = None
    id: str | None = None

    def check(self, key: str, newest: "LatestCluster") -> None:
        """Raise Gone when the latest cluster of ``key`` is not the cluster that the caller means."""
        check_owner(key, self.owner, newest.owner)
        check_attempt(key, self.attempt, newest.attempt)
        if self.id is not None and self.id != newest.id:
            raise Gone(
                f"cluster {key}: the cluster with id {self.id} has ended, and the key now names another cluster "
                f"(id {newest.id}, attempt {newest.attempt})"
            )


class LatestCluster(Protocol):
    """The latest cluster of a key."""

    @property
    def id(self) -> str:
        """The cluster's ID."""

    @property
    def attempt(self) -> int:
        """The cluster's attempt number."""

    @property
    def owner(self) -> str:
        """The cluster's owner."""


ANY_ATTEMPT: Final = AttemptFence()
"""A fence that accepts the latest cluster of any key."""


def resolve_request(
    key: str, request: ClusterRequest, former: LatestAttempt | None, own: int | None = None
) -> CreateAttempt | NoChange | AttemptBlocked:
    """Return the effect of a request: a new attempt, no change, or a wait.

    ``own`` is the highest attempt of the request's owner, if the key belongs to another owner now.

    Raise Gone for an attempt number that is too low. Raise Conflict for another owner's key, a different spec, or a
    cluster that has not ended.
    """
    if former is None:
        return CreateAttempt(request.attempt or 0)
    if request.spec.owner != former.spec.owner:
        return _resolve_for_new_owner(key, request.attempt, former, own)
    if request.attempt is None:
        return _resolve_without_attempt(key, request.spec, former)
    check_attempt(key, request.attempt, former.attempt)
    if request.attempt == former.attempt:
        return _check_same_spec(key, request.spec, former)
    if former.state in ENDED_STATES:
        return CreateAttempt(request.attempt)
    return AttemptBlocked(
        f"cluster {key}: attempt {former.attempt} is still {former.state} and is being ended: ask again"
    )


def check_owner(key: str, owner: str | None, newest: str) -> None:
    """Raise Gone if the caller's cluster belonged to ``owner``, and the key now belongs to another owner."""
    if owner is not None and owner != newest:
        raise Gone(f"cluster {key}: the cluster of {owner} has ended, and the key now belongs to another owner")


def check_attempt(key: str, attempt: int | None, newest: int) -> None:
    """Raise Gone for a call whose attempt number is lower than the latest."""
    if attempt is not None and attempt < newest:
        raise Gone(f"cluster {key}: attempt {attempt} has ended: the latest is attempt {newest}")


def _resolve_for_new_owner(key: str, attempt: int | None, former: LatestAttempt, own: int | None) -> CreateAttempt:
    """Create an attempt for the next owner of an ended cluster's key. The new owner's earlier attempts stay ended."""
    if former.state not in ENDED_STATES:
        raise Conflict(f"the key {key} belongs to another owner until its cluster has ended: choose another key")
    first = 0 if own is None else own + 1
    if attempt is not None and attempt < first:
        raise Gone(f"cluster {key}: attempt {attempt} has ended: the key belonged to another owner since")
    return CreateAttempt(first if attempt is None else attempt)


def _resolve_without_attempt(key: str, spec: ClusterSpec, former: LatestAttempt) -> CreateAttempt | NoChange:
    if former.state in ENDED_STATES:
        return CreateAttempt(former.attempt + 1)
    if former.state in WANTED_STATES:
        return _check_same_spec(key, spec, former)
    raise AttemptWaits(f"cluster {key} is still {former.state}: ask again when it has ended")


def _check_same_spec(key: str, spec: ClusterSpec, former: LatestAttempt) -> NoChange:
    if spec in (former.spec, former.shown):
        return NoChange()
    changed = [name for name in ClusterSpec.model_fields if getattr(spec, name) != getattr(former.spec, name)]
    raise OtherSpec(
        f"cluster {key} exists and is {former.state}, and differs in {', '.join(changed)}: "
        f"choose another key, or end it first"
    )
