"""The errors of requests: SBF refuses a call because of its content, its caller or the current state (HTTP 4xx).

Modules import these exceptions from ``virtcloud.model.errors``, whose docstring shows the whole tree.
"""

from typing import ClassVar


class VirtcloudError(Exception):
    """The base class of all exceptions of virtcloud. ``slug`` is the stable name in problem documents (RFC 9457)."""

    slug: ClassVar[str] = "error"


class BadInput(VirtcloudError, ValueError):
    """The input is invalid. Nothing was changed. ``path`` locates the fault within the input."""

    slug = "bad-input"

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        """Store the message and the path of the fault."""
        super().__init__(message)
        self.path = path


class BeyondLimit(BadInput):
    """A call exceeds a limit of SBF's settings. The message names the limit."""

    slug = "beyond-limit"


class BadDocument(BadInput):
    """A document is malformed. The message starts with the document's file and line."""

    slug = "bad-document"


class Unauthenticated(VirtcloudError):
    """The caller has no token, or an invalid, expired or revoked token."""

    slug = "unauthenticated"


class Forbidden(VirtcloudError):
    """The caller lacks the required right. The message names the roles or users with this right."""

    slug = "forbidden"


class NotAdmitted(Forbidden):
    """A rule about hosts or images forbids the request. For example, a host does not accept the owner."""

    slug = "not-admitted"


class NotFound(VirtcloudError):
    """The named object does not exist."""

    slug = "not-found"


class NoSuchHost(NotFound):
    """A cluster's spec names a host that the topology does not have."""

    slug = "no-such-host"


class NoSuchNetwork(NotFound):
    """A spec joins a network with a name or key that no running cluster has."""

    slug = "no-such-network"


class Conflict(VirtcloudError):
    """The request contradicts the current state. Nothing was changed."""

    slug = "conflict"


class NoVlanFree(Conflict):
    """SBF cannot allocate suitable VLAN IDs at the cluster's sites, or a service ID on the cluster's transport."""

    slug = "no-vlan-free"


class VlanNotInPool(Conflict):
    """The requested VLAN ID is outside the pool of a site."""

    slug = "vlan-not-in-pool"


class NameTaken(Conflict):
    """Another running cluster, or another image, has the requested name."""

    slug = "name-taken"


class NoPortFree(Conflict):
    """No port of a gateway is free to publish a guest."""

    slug = "no-port-free"


class HostNotLinked(Conflict):
    """A host has no link to a switch of its site. No cluster can reach the host."""

    slug = "host-not-linked"


class OtherSpec(Conflict):
    """A cluster with the same key and attempt has another spec."""

    slug = "other-spec"


class GuestTaken(Conflict):
    """A guest, a device or a gateway of the network already has the name or address of a requested guest."""

    slug = "guest-taken"


class NoAddressFree(Conflict):
    """A subnet of the network has too few free addresses."""

    slug = "no-address-free"


class NoCapacity(Conflict):
    """The hosts have too little room for the requested guests."""

    slug = "no-capacity"


class NoGateway(Conflict):
    """The cluster needs a gateway, but no gateway is suitable. For example, no gateway has an OpenVPN server."""

    slug = "no-gateway"


class AttemptWaits(Conflict):
    """The key's earlier attempt, or a job's earlier run, has not ended yet. The caller should retry."""

    slug = "attempt-waits"


class QuotaExceeded(Conflict):
    """The user would exceed a quota. The message names the quantity and the limit."""

    slug = "quota-exceeded"


class IllegalTransition(Conflict):
    """The transition table of a state machine lacks the requested transition."""

    slug = "illegal-move"


class PreconditionRequired(VirtcloudError):
    """The call would replace a document, but lacks the version that the caller read. Nothing was changed."""

    slug = "precondition-required"


class PreconditionFailed(VirtcloudError):
    """The document has changed since the caller read it. Nothing was changed."""

    slug = "precondition-failed"


class TooManyRequests(VirtcloudError):
    """The caller exceeded its rate limit. Nothing was changed. Retry after ``retry_after_s`` seconds."""

    slug = "too-many-requests"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        """Store the message and the delay before a retry, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Gone(VirtcloudError):
    """A later attempt, or a later cluster with the same key, replaced the attempt or cluster of this call."""

    slug = "gone"
