"""What a call that may be a repetition means, given what was seen under its key before (DESIGN.md §3, §7.7). Pure."""

from dataclasses import dataclass
from typing import Final, Protocol

from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import AttemptWaits, Conflict, Gone, OtherSpec


@dataclass(frozen=True, slots=True)
class LatestAttempt:
    """The newest attempt under a key. ``shown`` is its spec as it is shown, where that was changed since."""

    attempt: int
    state: ClusterState
    spec: ClusterSpec
    shown: ClusterSpec | None = None


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """A cluster is to be made."""

    attempt: int


@dataclass(frozen=True, slots=True)
class NoChange:
    """The newest attempt is what is meant; nothing changes."""


@dataclass(frozen=True, slots=True)
class AttemptBlocked:
    """A new attempt has to wait for the former one, which is to end."""

    message: str


@dataclass(frozen=True, slots=True)
class AttemptFence:
    """Which cluster a call about a key means, by what its caller knows of it; None says nothing.

    ``id`` is exact. ``attempt`` and ``owner`` are for those who know no id: a batch system's hosts.
    """

    attempt: int | None = None
    owner: str | None = None
    id: str | None = None

    def check(self, key: str, newest: "LatestCluster") -> None:
        """Raise Gone when the newest cluster under ``key`` is not the one that is meant."""
        check_owner(key, self.owner, newest.owner)
        check_attempt(key, self.attempt, newest.attempt)
        if self.id is not None and self.id != newest.id:
            raise Gone(
                f"cluster {key}: the one with id {self.id} is over, the key stands for another one since "
                f"(id {newest.id}, attempt {newest.attempt})"
            )


class LatestCluster(Protocol):
    """The newest cluster under a key."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def attempt(self) -> int:
        """Its attempt."""

    @property
    def owner(self) -> str:
        """Its owner."""


ANY_ATTEMPT: Final = AttemptFence()
"""Means whatever cluster is the newest under its key."""


def resolve_request(
    key: str, request: ClusterRequest, former: LatestAttempt | None, own: int | None = None
) -> CreateAttempt | NoChange | AttemptBlocked:
    """Say what a request means; ``own`` is the highest attempt of its owner under a key that is another's now.

    Raises Gone for a lower attempt, Conflict for another owner's key, another spec or a cluster still ending.
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
    """Raise Gone for a call that is about another owner's cluster than the newest one under its key."""
    if owner is not None and owner != newest:
        raise Gone(f"cluster {key}: the one of {owner} is over, the key is another owner's since")


def check_attempt(key: str, attempt: int | None, newest: int) -> None:
    """Raise Gone for a call that is about a lower attempt than the newest one under its key."""
    if attempt is not None and attempt < newest:
        raise Gone(f"cluster {key}: attempt {attempt} is over, attempt {newest} was seen since")


def _resolve_for_new_owner(key: str, attempt: int | None, former: LatestAttempt, own: int | None) -> CreateAttempt:
    """Give the key of an ended cluster to its next owner; what that one had under it before is over all the same."""
    if former.state not in ENDED_STATES:
        raise Conflict(f"the key {key} belongs to another owner until its cluster has ended: choose another key")
    first = 0 if own is None else own + 1
    if attempt is not None and attempt < first:
        raise Gone(f"cluster {key}: attempt {attempt} is over, the key was another owner's since")
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
