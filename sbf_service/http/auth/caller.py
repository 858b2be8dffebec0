"""The caller of an operation: the caller's rate limits, and the errors for missing rights."""

import time
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from math import ceil
from typing import Self

from limits import parse
from limits.strategies import MovingWindowRateLimiter

from sbf_service.bootstrap import SbfService
from sbf_service.domain.authentication import Principal, Token
from sbf_service.domain.rights import (
    WHOLE_SERVICE,
    Action,
    ProtectedResource,
    RightScope,
    describe_denial,
    find_scope,
    is_allowed,
)
from sbf_service.log import get_log
from sbf_service.metrics import ServiceMetrics
from sbf_service.settings import RateLimit, RateLimits
from virtcloud.model.access import Role
from virtcloud.model.errors import Forbidden, TooManyRequests, VirtcloudError

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """The rate limits of callers, with the counts of this replica. Thread-safe.

    A method that refuses a call raises TooManyRequests with the seconds to wait.
    """

    rates: RateLimits
    counts: MovingWindowRateLimiter

    @classmethod
    def of(cls, service: SbfService) -> Self:
        """Return the rate limiter of a service."""
        return cls(service.settings.rates, service.call_counts)

    def check_address(self, address: str) -> None:
        """Raise TooManyRequests if an address, or its /64 network (IPv6), sent too many invalid tokens."""
        rate, origin = self.rates.failed_tokens, find_origin(address)
        if not self.counts.test(parse(rate), "failed", origin):
            raise self._too_many(rate, "failed", origin, f"{origin} sent too many invalid tokens")

    def record_failure(self, address: str) -> None:
        """Count an invalid token from an address."""
        self.counts.hit(parse(self.rates.failed_tokens), "failed", find_origin(address))

    def count_call(self, rate: RateLimit, kind: str, who: str, action: str) -> None:
        """Count a call of ``who``. Raise TooManyRequests, with the ``action`` in its message, above ``rate``."""
        if not self.counts.hit(parse(rate), kind, who):
            raise self._too_many(rate, kind, who, f"{who} {action} too often")

    def _too_many(self, rate: RateLimit, kind: str, who: str, reason: str) -> TooManyRequests:
        reset_time = self.counts.get_window_stats(parse(rate), kind, who).reset_time
        retry_after_s = max(1, ceil(reset_time - time.monotonic()))
        return TooManyRequests(f"{reason} (limit {rate}): try again in {retry_after_s} s", retry_after_s)


def find_origin(address: str) -> str:
    """Return the text under which failures from an address are counted.

    For an IPv6 address, this is the /64 network, because a caller can usually use all its addresses. All other texts
    are unchanged, such as an IPv4 address, ``uid N``, and the loopback address.
    """
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    return address if parsed.is_loopback else str(IPv6Network((int(parsed), 64), strict=False))


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated principal of a call, the address of the call's origin, and the call's token or None."""

    principal: Principal
    address: str
    metrics: ServiceMetrics
    rate_limiter: RateLimiter
    token: Token | None = None

    @property
    def who(self) -> str:
        """The caller's name in the audit log."""
        return self.principal.who

    def require(self, action: Action, resource: ProtectedResource = WHOLE_SERVICE) -> None:
        """Raise Forbidden unless the caller has the right to ``action`` on ``resource``."""
        if not is_allowed(self.principal, action, resource):
            raise self.deny(Forbidden(describe_denial(self.principal, action, resource)), action, resource)

    def require_for_any(self, action: Action, kind: str) -> None:
        """Raise Forbidden if the caller has no right to ``action`` on any resource.

        The error's message names ``kind``, the kind of the resource.
        """
        if find_scope(self.principal, action) is None:
            self.require(action, ProtectedResource(f"any {kind}"))

    def is_unrestricted(self, action: Action) -> bool:
        """Return whether the caller has the right to ``action`` on every resource."""
        return find_scope(self.principal, action) is RightScope.ALL

    def may_read_clusters_of(self, owner: str) -> bool:
        """Return whether the caller may read this owner's clusters."""
        return is_allowed(self.principal, Action.READ_CLUSTER, ProtectedResource(owner=owner))

    def count_creation(self) -> None:
        """Count a creation of a cluster by a caller of the role *user*. Raise TooManyRequests above the rate limit."""
        if self.principal.role is Role.USER:
            self._count(self.rate_limiter.rates.clusters, "cluster", "requested clusters")

    def count_profile(self) -> None:
        """Count a request for a VPN profile. Raise TooManyRequests above the caller's rate limit."""
        self._count(self.rate_limiter.rates.profiles, "profile", "requested VPN profiles")

    def count_certificate(self) -> None:
        """Count a request for an SSH certificate. Raise TooManyRequests above the caller's rate limit."""
        self._count(self.rate_limiter.rates.certificates, "certificate", "requested SSH certificates")

    def count_device_read(self) -> None:
        """Count an on-demand read of devices. Raise TooManyRequests above the caller's rate limit."""
        self._count(self.rate_limiter.rates.device_reads, "read", "requested readings of devices")

    def _count(self, rate: RateLimit, kind: str, action: str) -> None:
        try:
            self.rate_limiter.count_call(rate, kind, self.who, action)
        except TooManyRequests as error:
            self.metrics.record_denial(error.slug)
            log.warning("rate_limited", who=self.who, why=error)
            raise

    def deny(self, error: VirtcloudError, action: Action, resource: ProtectedResource) -> VirtcloudError:
        """Log and count the denial of a right. Return ``error``."""
        self.metrics.record_denial(error.slug)
        log.warning(
            "denied", who=self.who, action=action.name.lower(), subject=resource.description, address=self.address
        )
        return error
