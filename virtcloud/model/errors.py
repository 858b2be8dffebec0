"""The one tree of exceptions.

::

    VirtcloudError
    ├── BadInput              what was given cannot be right            exit code 2, HTTP 422
    │   ├── BeyondLimit       … since it is larger than SBF's settings allow
    │   └── BadDocument       … and stands at a line of a file
    ├── Unauthenticated       SBF does not know who calls               exit code 2, HTTP 401
    ├── Forbidden             who calls may not do that                 HTTP 403
    │   └── NotAdmitted       … since a host or an image is not for the cluster's owner
    ├── NotFound              what was named does not exist             HTTP 404
    │   ├── NoSuchHost        … a host that a cluster shall have
    │   └── NoSuchNetwork     … a network that a cluster shall join
    ├── Conflict              what was asked contradicts what is        HTTP 409
    │   ├── NoVlanFree        no number is free at all the sites
    │   ├── VlanNotInPool     the number that was asked for is not given by a site
    │   ├── NameTaken         a cluster that has not ended has that name
    │   ├── HostNotLinked     a host has no link to a switch of its site
    │   ├── OtherSpec         a key, and attempt, that stands for a cluster with another spec
    │   ├── GuestTaken        another guest of the network has that name or address
    │   ├── AttemptWaits      a former attempt has to end first: to be asked again
    │   ├── QuotaExceeded     a user would have more than it may
    │   └── IllegalMove       a state machine was asked for a move it does not have
    ├── PreconditionRequired  a document would be replaced unseen       HTTP 428
    ├── PreconditionFailed    it was changed since the caller read it   HTTP 412
    ├── TooManyRequests       a caller asks too often                   HTTP 429
    ├── JobUnproven           a host's word about a job is not enough   HTTP 503
    ├── Gone                  a call of an attempt that is over         HTTP 410
    ├── ServiceUnreachable    SBF does not answer
    │   ├── DatabaseUnavailable  … because its database does not       HTTP 503
    │   └── ServiceBusy       … because too many such calls run already HTTP 503, with Retry-After
    ├── SchedulerSilent       the batch system does not answer, or not in full
    ├── ClusterFailed         a cluster that was waited for will not be
    ├── TimedOut              what was waited for did not come in time; it may still
    └── ElementError          an element could not do its part
        ├── Unreachable       it does not answer: to be tried again
        ├── Refused           it said no, in its own words
        └── Unsafe            what was found there may not be touched

A message names the thing, what was wanted, what was seen, and what to do.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

_UNPRINTABLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")


def printable(text: str) -> str:
    """Return ``text`` with U+FFFD for each character that a database, JSON or a terminal cannot take.

    These are control characters but tab and line feed (PostgreSQL stores no NUL, a terminal obeys ESC), and lone
    surrogates, which stand for bytes that are not UTF-8.
    """
    return _UNPRINTABLE.sub("\ufffd", text)


class VirtcloudError(Exception):
    """Any error of virtcloud. ``slug`` is its stable name in problem documents (RFC 9457)."""

    slug: ClassVar[str] = "error"


class BadInput(VirtcloudError, ValueError):
    """What was given cannot be right; nothing was changed. ``path`` leads to it within what was given."""

    slug = "bad-input"

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        """Keep the message, and where the fault is."""
        super().__init__(message)
        self.path = path


class BeyondLimit(BadInput):
    """One call asks for more than the settings of this SBF allow; the message names the limit."""

    slug = "beyond-limit"


class BadDocument(BadInput):
    """A document is malformed; the message starts with its file and line."""

    slug = "bad-document"


class Unauthenticated(VirtcloudError):
    """SBF does not know who calls: there is no token, or one that is not valid (any more)."""

    slug = "unauthenticated"


class Forbidden(VirtcloudError):
    """Who calls may not do that; the message says who may."""

    slug = "forbidden"


class NotAdmitted(Forbidden):
    """A host does not take part in clusters of this owner, or the owner may not name an image there."""

    slug = "not-admitted"


class NotFound(VirtcloudError):
    """What was named does not exist."""

    slug = "not-found"


class NoSuchHost(NotFound):
    """A cluster was asked for on a host that the topology does not have."""

    slug = "no-such-host"


class NoSuchNetwork(NotFound):
    """No cluster that has not ended has the name or key of the network that was to be joined."""

    slug = "no-such-network"


class Conflict(VirtcloudError):
    """What was asked contradicts what is; nothing was changed."""

    slug = "conflict"


class NoVlanFree(Conflict):
    """No VLAN number is free at every site that the cluster needs."""

    slug = "no-vlan-free"


class VlanNotInPool(Conflict):
    """The VLAN number that was asked for is not one that a site gives to clusters."""

    slug = "vlan-not-in-pool"


class NameTaken(Conflict):
    """Another cluster that has not ended has the name that was asked for."""

    slug = "name-taken"


class HostNotLinked(Conflict):
    """A host has no link to a switch of its site, so that no cluster can reach it."""

    slug = "host-not-linked"


class OtherSpec(Conflict):
    """The key, with this attempt, stands for a cluster with another spec."""

    slug = "other-spec"


class GuestTaken(Conflict):
    """Another guest of the network that is joined has the name or an address that was asked for."""

    slug = "guest-taken"


class AttemptWaits(Conflict):
    """A new attempt waits for the former one, which is being ended; ask again."""

    slug = "attempt-waits"


class QuotaExceeded(Conflict):
    """A user would have more than it may; the message says what, and the limit."""

    slug = "quota-exceeded"


class IllegalTransition(Conflict):
    """A state machine was asked for a move that its table does not have."""

    slug = "illegal-move"


class PreconditionRequired(VirtcloudError):
    """A document would be replaced without the version that the caller read; nothing was changed."""

    slug = "precondition-required"


class PreconditionFailed(VirtcloudError):
    """A document was changed since the caller read it; nothing was changed by this call."""

    slug = "precondition-failed"


class TooManyRequests(VirtcloudError):
    """A caller asks too often; nothing was changed. ``retry_after_s`` seconds later it may be asked again."""

    slug = "too-many-requests"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        """Store the message, and when to try again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class JobUnproven(VirtcloudError):
    """A host asks for a job's cluster, and the batch system's server has not confirmed that job yet; ask again."""

    slug = "job-unproven"


class Gone(VirtcloudError):
    """A call of an attempt that is over: a later attempt has been seen."""

    slug = "gone"


class ServiceUnreachable(VirtcloudError):
    """SBF does not answer."""

    slug = "service-unreachable"


class DatabaseUnavailable(ServiceUnreachable):
    """SBF answers that its database does not; every call may be repeated, and nothing that is set up is touched."""

    slug = "database-unavailable"


class ServiceBusy(ServiceUnreachable):
    """SBF runs too many such calls already; nothing was changed. It may be asked again after ``retry_after_s``."""

    slug = "service-busy"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        """Store the message, and when to try again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SchedulerUnavailable(VirtcloudError):
    """The batch system does not answer, or not in full: nothing may be concluded from what it did not say."""

    slug = "scheduler-silent"


class ClusterFailed(VirtcloudError):
    """A cluster that was waited for will not be; the message carries the reason."""

    slug = "cluster-failed"


class TimedOut(VirtcloudError):
    """What was waited for did not come in time; it may still, and nothing was changed."""

    slug = "timed-out"


class ElementError(VirtcloudError):
    """An element could not do its part. The message often quotes the element, so that it is made printable here."""

    slug = "element-error"

    def __init__(self, message: str = "") -> None:
        """Make what the element said printable."""
        super().__init__(printable(message))


class Unreachable(ElementError):
    """The element does not answer; it is to be tried again."""

    slug = "unreachable"


class Refused(ElementError):
    """The element said no; the message carries its words.

    ``about`` has what is about single VLAN IDs, where all of the message is: no other cluster is concerned then.
    """

    slug = "refused"

    def __init__(self, message: str, about: Mapping[int, str] = MappingProxyType({})) -> None:
        """Store the message, and which part of it concerns which VLAN ID."""
        super().__init__(message)
        self.about = {vlan: printable(text) for vlan, text in about.items()}


class Unsafe(ElementError):
    """What was found on the element is not what may be touched; it was left alone."""

    slug = "unsafe"
