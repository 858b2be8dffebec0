"""Idempotency: the effect of a repeated or late call with an idempotency key (``key``). Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import AttemptWaits, Conflict, Gone, OtherSpec

SAFE_TO_REPEAT: Final = "it is safe to repeat the call"
NOT_SAFE_TO_REPEAT: Final = (
    "before you repeat the call, look whether the call had an effect (virtcloud token list, virtcloud access list), "
    "because a repeated call creates a second token, profile, certificate or authority"
)
"""The advice for the calls of the API that are not idempotent."""


@dataclass(frozen=True, slots=True)
class LatestAttempt:
    """The latest attempt to create a cluster with an idempotency key.

    ``spec`` is the requested spec. ``shown`` is the spec that clients receive, with SBF's choices and later changes. If
    ``is_readable`` is false, this version cannot read the stored spec, and ``spec`` is incomplete.
    """

    attempt: int
    state: ClusterState
    spec: ClusterSpec
    shown: ClusterSpec | None = None
    is_readable: bool = True


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """The call begins a new attempt: SBF must create a cluster with the attempt number ``attempt``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class NoChange:
    """The call repeats the latest attempt and changes nothing."""


@dataclass(frozen=True, slots=True)
class AttemptBlocked:
    """A new attempt must wait until the cluster of the previous attempt has ended."""

    message: str


@dataclass(frozen=True, slots=True)
class AttemptFence:
    """The values by which a caller identifies a cluster, as far as the caller knows them.

    ``attempt`` and ``owner`` are for callers that do not know the ID, such as hosts of a batch system.
    """

    attempt: int | None = None
    owner: str | None = None
    id: str | None = None

    def check(self, key: str, latest: "LatestCluster") -> None:
        """Raise Gone if the latest cluster of ``key`` is not the cluster that the caller refers to."""
        check_owner(key, self.owner, latest.owner)
        check_attempt(key, self.attempt, latest.attempt)
        if self.id is not None and self.id != latest.id:
            raise Gone(
                f"cluster {key}: the cluster with id {self.id} has ended, and the key now names another cluster "
                f"(id {latest.id}, attempt {latest.attempt})"
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
    key: str, request: ClusterRequest, latest: LatestAttempt | None, own_attempt: int | None = None
) -> CreateAttempt | NoChange | AttemptBlocked:
    """Return the effect of a request: a new attempt, no change, or a wait.

    ``own_attempt`` is the highest attempt number that the request's owner used with a key that now belongs to another
    owner, or None if this owner never used the key.

    Raise Gone for an attempt number that is too low. Raise Conflict if another owner's cluster has not ended, or if a
    request repeats the latest attempt with another spec. A request without an attempt number repeats the latest attempt
    while the latest cluster runs. While this cluster is ending, raise Conflict for such a request.
    """
    if latest is None:
        return CreateAttempt(request.attempt or 0)
    if request.spec.owner != latest.spec.owner:
        return _resolve_for_new_owner(key, request.attempt, latest, own_attempt)
    if request.attempt is None:
        return _resolve_without_attempt(key, request.spec, latest)
    check_attempt(key, request.attempt, latest.attempt)
    if request.attempt == latest.attempt:
        return _check_same_spec(key, request.spec.model_copy(update=_first_keys(latest)), latest)
    if latest.state in ENDED_STATES:
        return CreateAttempt(request.attempt)
    return AttemptBlocked(
        f"cluster {key}: attempt {latest.attempt} is {latest.state} and is being ended: try again later"
    )


def check_owner(key: str, owner: str | None, latest_owner: str) -> None:
    """Raise Gone if the caller refers to ``owner``, but the key now belongs to another owner."""
    if owner is not None and owner != latest_owner:
        raise Gone(f"cluster {key}: the cluster of {owner} has ended, and the key now belongs to another owner")


def check_attempt(key: str, attempt: int | None, latest: int) -> None:
    """Raise Gone for a call with a number lower than the latest attempt number."""
    if attempt is not None and attempt < latest:
        raise Gone(f"cluster {key}: attempt {attempt} has ended: the latest is attempt {latest}")


def _resolve_for_new_owner(
    key: str, attempt: int | None, latest: LatestAttempt, own_attempt: int | None
) -> CreateAttempt:
    """Return the attempt that a new owner of the key creates.

    Raise Conflict if the former owner's cluster has not ended. Raise Gone for an attempt number up to ``own_attempt``.
    """
    if latest.state not in ENDED_STATES:
        raise Conflict(f"the key {key} belongs to another owner until its cluster has ended: choose another key")
    first = 0 if own_attempt is None else own_attempt + 1
    if attempt is not None and attempt < first:
        raise Gone(f"cluster {key}: attempt {attempt} has ended, and the key has belonged to another owner since then")
    return CreateAttempt(first if attempt is None else attempt)


def _resolve_without_attempt(key: str, spec: ClusterSpec, latest: LatestAttempt) -> CreateAttempt | NoChange:
    if latest.state in ENDED_STATES:
        return CreateAttempt(latest.attempt + 1)
    if latest.state in WANTED_STATES:
        return _check_same_spec(key, spec, latest)
    raise AttemptWaits(f"cluster {key} is still {latest.state}: try again when the cluster has ended")


def _first_keys(latest: LatestAttempt) -> dict[str, object]:
    """Return the public keys of an attempt's first request.

    They replace the keys of a repeated request, because a batch system reads the user's keys again for each request.
    """
    return {"authorized_keys": latest.spec.authorized_keys}


def _list_shown(latest: LatestAttempt) -> Iterator[ClusterSpec]:
    """Yield the spec that clients receive, and the same spec with the requested ``subnets``.

    The second spec is for clients of version 0.1, which receive no ``subnets``.
    """
    if latest.shown is not None:
        yield latest.shown
        yield latest.shown.model_copy(update={"subnets": latest.spec.subnets})


def _check_same_spec(key: str, spec: ClusterSpec, latest: LatestAttempt) -> NoChange:
    has_ended = latest.state in ENDED_STATES
    remedy = "choose another key, or " + ("a higher attempt number" if has_ended else "end the cluster first")
    if not latest.is_readable:
        raise OtherSpec(
            f"cluster {key} exists and is {latest.state}, and this version of SBF cannot read its stored spec: {remedy}"
        )
    if spec in (latest.spec, *_list_shown(latest)):
        return NoChange()
    changed = [name for name in ClusterSpec.model_fields if getattr(spec, name) != getattr(latest.spec, name)]
    raise OtherSpec(
        f"cluster {key} exists and is {latest.state}, and differs from this request in {', '.join(changed)}: {remedy}"
    )
