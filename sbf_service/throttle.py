"""Rate limits on what can hurt, in this replica: failed tokens by address, new clusters and device reads by caller."""

import time
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from sbf_service.access.principal import Principal
from sbf_service.settings import Rate, Rates
from virtcloud.model.access import Role
from virtcloud.model.errors import TooManyRequests


@dataclass(frozen=True)
class Throttle:
    """Counts in memory; thread-safe. Each method raises TooManyRequests, which says when to try again."""

    rates: Rates

    def check_failures(self, address: str) -> None:
        """Refuse an address from which too many tokens were not valid; counts nothing."""
        rate = self.rates.failed_tokens
        if not self._limiter.test(_item(rate), "failed", address):
            raise self._too_many(rate, "failed", address, f"too many tokens from {address} were not valid")

    def note_failure(self, address: str) -> None:
        """Count a token that was not valid."""
        self._limiter.hit(_item(self.rates.failed_tokens), "failed", address)

    def create_cluster(self, caller: Principal) -> None:
        """Count a cluster, or a dry run, that a user asks for; schedulers and operators know what they do."""
        if caller.role is Role.USER:
            self._count(self.rates.clusters, "cluster", caller, "asked for clusters")

    def read_device(self, caller: Principal) -> None:
        """Count a reading of devices that somebody asks for."""
        self._count(self.rates.device_reads, "read", caller, "had devices read")

    @cached_property
    def _limiter(self) -> MovingWindowRateLimiter:
        return MovingWindowRateLimiter(MemoryStorage())

    def _count(self, rate: Rate, what: str, caller: Principal, words: str) -> None:
        if not self._limiter.hit(_item(rate), what, caller.who):
            raise self._too_many(rate, what, caller.who, f"{caller.who} {words} too often")

    def _too_many(self, rate: Rate, what: str, who: str, words: str) -> TooManyRequests:
        resets = self._limiter.get_window_stats(_item(rate), what, who).reset_time
        after = max(1, ceil(resets - time.time()))
        return TooManyRequests(f"{words} (limit {rate}): try again in {after} s", after)


def _item(rate: Rate) -> RateLimitItem:
    return parse(rate)
