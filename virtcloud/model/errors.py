"""The exceptions of virtcloud, as one tree.

::

    VirtcloudError
    ├── BadInput              the input is invalid                          exit code 2, HTTP 422
    │   ├── BeyondLimit       the input exceeds a limit of SBF's settings
    │   └── BadDocument       a line of a file is invalid
    ├── Unauthenticated       the caller has no valid token                 exit code 2, HTTP 401
    ├── Forbidden             the caller lacks the right                    HTTP 403
    │   └── NotAdmitted       a rule about hosts or images forbids the request
    ├── NotFound              the named object does not exist               HTTP 404
    │   ├── NoSuchHost        a cluster's spec names a host that does not exist
    │   └── NoSuchNetwork     a cluster's spec joins a network that does not exist
    ├── Conflict              the request contradicts the current state     HTTP 409
    │   ├── NoVlanFree        no suitable VLAN ID or service ID is free for the cluster
    │   ├── VlanNotInPool     the requested VLAN ID is outside a site's pool
    │   ├── NameTaken         another running cluster, or another image, has this name
    │   ├── NoPortFree        no port of a gateway is free to publish a guest
    │   ├── HostNotLinked     a host has no link to a switch of its site
    │   ├── OtherSpec         a cluster with this key and this attempt exists, but its spec differs
    │   ├── NoGateway         the cluster needs a gateway, but no gateway is suitable
    │   ├── GuestTaken        another guest of the network has this name or address
    │   ├── NoAddressFree     a subnet of the network has too few free addresses
    │   ├── NoCapacity        the hosts have too little room for the guests
    │   ├── AttemptWaits      an earlier attempt is still being removed: retry
    │   ├── QuotaExceeded     the user's quota is exhausted
    │   └── IllegalTransition a state machine has no such transition
    ├── PreconditionRequired  the call lacks the version of the document that it replaces  HTTP 428
    ├── PreconditionFailed    the document changed since the caller read it     HTTP 412
    ├── TooManyRequests       the caller exceeded its rate limit            HTTP 429
    ├── JobUnproven           the batch server has not confirmed the job    HTTP 503
    ├── Gone                  the call belongs to an outdated attempt       HTTP 410
    ├── NoSuchCall            SBF is older than this client and lacks the call
    ├── ServiceUnreachable    SBF gives no usable answer
    │   ├── AnswerUnreadable  SBF's answer is invalid in this version of virtcloud
    │   ├── DatabaseUnavailable  SBF's database does not answer         HTTP 503
    │   └── ServiceBusy       too many similar calls are running            HTTP 503, with Retry-After
    │       └── ServiceStopping  this service stops                         HTTP 503, with Retry-After
    ├── StorageFull           SBF cannot store an image                     HTTP 507
    ├── SchedulerUnavailable  the batch system's answer is missing or incomplete
    ├── ClusterFailed         the awaited cluster has failed
    ├── TimedOut              a wait exceeded its timeout; the operation continues
    ├── GuestsFailed          a command or a copy failed on some guests
    └── ElementError          an element failed
        ├── Unreachable       the element does not answer: retry
        ├── Refused           the element rejected the change, with a message
        └── Unsafe            the element's observed configuration must not be changed

A message names the object, the expectation, the observation and the remedy.
"""

from collections.abc import Mapping
from types import MappingProxyType

from virtcloud.model.message_text import count_of, printable
from virtcloud.model.request_errors import (
    AttemptWaits,
    BadDocument,
    BadInput,
    BeyondLimit,
    Conflict,
    Forbidden,
    Gone,
    GuestTaken,
    HostNotLinked,
    IllegalTransition,
    NameTaken,
    NoAddressFree,
    NoCapacity,
    NoGateway,
    NoPortFree,
    NoSuchHost,
    NoSuchNetwork,
    NotAdmitted,
    NotFound,
    NoVlanFree,
    OtherSpec,
    PreconditionFailed,
    PreconditionRequired,
    QuotaExceeded,
    TooManyRequests,
    Unauthenticated,
    VirtcloudError,
    VlanNotInPool,
)

__all__ = [
    "AttemptWaits",
    "BadDocument",
    "BadInput",
    "BeyondLimit",
    "Conflict",
    "Forbidden",
    "Gone",
    "GuestTaken",
    "HostNotLinked",
    "IllegalTransition",
    "NameTaken",
    "NoAddressFree",
    "NoCapacity",
    "NoGateway",
    "NoPortFree",
    "NoSuchHost",
    "NoSuchNetwork",
    "NoVlanFree",
    "NotAdmitted",
    "NotFound",
    "OtherSpec",
    "PreconditionFailed",
    "PreconditionRequired",
    "QuotaExceeded",
    "TooManyRequests",
    "Unauthenticated",
    "VirtcloudError",
    "VlanNotInPool",
]


class NoSuchCall(VirtcloudError):
    """SBF lacks this call, because SBF is older than this client."""

    slug = "no-such-call"


class JobUnproven(VirtcloudError):
    """A host requests a job's cluster, but the batch server has not confirmed the job yet. The caller should retry."""

    slug = "job-unproven"


class ServiceUnreachable(VirtcloudError):
    """SBF does not answer, or its answer is unusable."""

    slug = "service-unreachable"


class AnswerUnreadable(ServiceUnreachable):
    """SBF's answer is invalid for this version of virtcloud.

    ``fault`` names the first invalid key of the answer and the expected value.
    """

    slug = "answer-unreadable"

    def __init__(self, message: str, fault: str = "") -> None:
        """Store the message and the fault."""
        super().__init__(message)
        self.fault = fault


class DatabaseUnavailable(ServiceUnreachable):
    """SBF cannot reach its database. Every call may be repeated; running clusters are not affected."""

    slug = "database-unavailable"


class ServiceBusy(ServiceUnreachable):
    """SBF cannot serve the call now, for example because too many similar calls are running. Nothing was changed.

    Retry after ``retry_after_s`` seconds.
    """

    slug = "service-busy"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        """Store the message and the delay before a retry, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceStopping(ServiceBusy):
    """The service is stopping. Retry after ``retry_after_s`` seconds, at another replica or after the restart."""

    slug = "service-stopping"


class StorageFull(VirtcloudError):
    """SBF cannot store, read or remove an image's file: its disk is full, or its folder cannot be written or read."""

    slug = "storage-full"


class SchedulerUnavailable(VirtcloudError):
    """The batch system's answer is missing or incomplete. A job that is absent from the answer may still exist."""

    slug = "scheduler-silent"


class ClusterFailed(VirtcloudError):
    """The awaited cluster failed or was deleted. The message contains the reason."""

    slug = "cluster-failed"


class TimedOut(VirtcloudError):
    """A wait exceeded its timeout. The awaited operation continues."""

    slug = "timed-out"


class GuestsFailed(VirtcloudError):
    """A command or a copy failed on some guests. ``failures`` maps each of these guests to the reason."""

    slug = "guests-failed"

    def __init__(self, subject: str, failures: Mapping[str, str], total: int) -> None:
        """Store the reasons. ``total`` is the number of guests, with and without a failure."""
        self.failures = dict(failures)
        reasons = "".join(f"\n{name}: {reason}" for name, reason in failures.items())
        super().__init__(f"{subject} failed on {len(failures)} of {count_of(total, 'guest')}:{reasons}")


class ElementError(VirtcloudError):
    """An element failed. The message is made printable, because it may quote the element's output."""

    slug = "element-error"

    def __init__(self, message: str = "") -> None:
        """Replace the unprintable characters of the message."""
        super().__init__(printable(message))


class Unreachable(ElementError):
    """The element does not answer. The caller should retry."""

    slug = "unreachable"


class Refused(ElementError):
    """The element rejected a change. The message quotes the element's output.

    ``about`` maps a VLAN ID to the part of the message that concerns only this VLAN ID. If ``about`` is not empty,
    clusters with other VLAN IDs are not affected.
    """

    slug = "refused"

    def __init__(self, message: str, about: Mapping[int, str] = MappingProxyType({})) -> None:
        """Store the message and its parts by VLAN ID."""
        super().__init__(message)
        self.about = {vlan: printable(text) for vlan, text in about.items()}


class Unsafe(ElementError):
    """The observed configuration of the element must not be changed. Nothing was changed."""

    slug = "unsafe"
