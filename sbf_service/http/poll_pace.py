"""The rate limit of polls (calls with the parameter ``after``) that return no newer version of a document.

The limit is a token bucket for each caller and document. A poll takes a token only if it finds, at its start, the same
version as the caller's previous poll. Therefore, frequent changes of a document never cause a refusal.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from limits import parse

from sbf_service.log import get_log
from virtcloud.model.errors import TooManyRequests

RETRY_AFTER_S = 10
LOG_INTERVAL_S = 60.0
MAX_BUCKETS = 50_000
PollKey = tuple[str, str]
"""The caller's name, and the topic of the document."""
log = get_log(__name__)


@dataclass(slots=True)
class _Bucket:
    version: int
    left: float
    counted_at: float
    logged_at: float | None = None


@dataclass
class PollPace:
    """Counts calls that return no newer version, for each caller and document.

    Only the event loop uses this object. ``clock`` is monotonic, in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _buckets: dict[PollKey, _Bucket] = field(default_factory=dict)

    def check(self, key: PollKey, rate: str) -> None:
        """Raise TooManyRequests if the bucket of ``key`` is empty."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return
        self._refill(bucket, rate)
        if bucket.left >= 1:
            return
        who, document = key
        error = TooManyRequests(
            f"{who} requested the unchanged {document} too often (limit {rate}, setting rates.polls): expected a call "
            f"with 'after' and 'wait', which waits for a change; try again in {RETRY_AFTER_S} s",
            RETRY_AFTER_S,
        )
        if bucket.logged_at is None or self.clock() - bucket.logged_at >= LOG_INTERVAL_S:
            bucket.logged_at = self.clock()
            log.warning("polls_without_wait", who=who, document=document, limit=rate)
        raise error

    def count(self, key: PollKey, version: int, rate: str) -> None:
        """Count the answer to a call if the answer has the same version as the previous answer."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.clear()
            self._buckets[key] = _Bucket(version, _parse_rate(rate)[0], self.clock())
        elif bucket.version != version:
            bucket.version = version
        else:
            self._refill(bucket, rate)
            bucket.left -= 1

    def _refill(self, bucket: _Bucket, rate: str) -> None:
        amount, seconds = _parse_rate(rate)
        passed = self.clock() - bucket.counted_at
        bucket.left = min(amount, bucket.left + passed * amount / seconds)
        bucket.counted_at = self.clock()


@cache
def _parse_rate(rate: str) -> tuple[float, float]:
    """Return the number of calls and the seconds of a rate such as ``240/minute``."""
    parsed = parse(rate)
    return float(parsed.amount), float(parsed.get_expiry())
