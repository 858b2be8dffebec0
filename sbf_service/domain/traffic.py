"""Samples of traffic counters, and the rates between two samples. Pure.

A rate needs two samples of the same port, and is never negative. A period has no rate if the port was created again, or
if a counter decreased.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from virtcloud.model.traffic import SegmentCounters, TrafficRate

MAX_SAMPLES: Final = 31
"""The maximum number of samples of a cluster on one element: 15 minutes of reports, one every 30 s."""
MIN_PERIOD_S: Final = 5.0
"""The minimum time in seconds between two samples, so that an agent cannot cause many writes."""
MAX_PERIOD_S: Final = 900.0
"""The longest period with a rate, in seconds. A longer mean would not describe the present traffic."""
COUNTERS: Final = ("received_bytes", "sent_bytes", "received_frames", "sent_frames")


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """The counters of a port at one time, in the order of `COUNTERS`."""

    at: datetime
    port: str
    counters: tuple[int, int, int, int]

    @classmethod
    def of(cls, reported: SegmentCounters, at: datetime) -> "TrafficSample":
        """Return the sample of a report."""
        counters = reported.received_bytes, reported.sent_bytes, reported.received_frames, reported.sent_frames
        return cls(at, reported.port, counters)


def add_sample(samples: Sequence[TrafficSample], new: TrafficSample) -> tuple[TrafficSample, ...] | None:
    """Append ``new`` and return the newest `MAX_SAMPLES` samples.

    Return None if less than `MIN_PERIOD_S` have passed since the last sample.
    """
    if samples and (new.at - samples[-1].at).total_seconds() < MIN_PERIOD_S:
        return None
    return (*samples, new)[-MAX_SAMPLES:]


def find_increases(before: TrafficSample, after: TrafficSample) -> tuple[int, int, int, int] | None:
    """Return the increase of each counter, or None if the counters cannot be compared."""
    if before.port != after.port or any(new < old for old, new in zip(before.counters, after.counters, strict=True)):
        return None
    first, second, third, fourth = (new - old for old, new in zip(before.counters, after.counters, strict=True))
    return first, second, third, fourth


def compute_rates(samples: Sequence[TrafficSample]) -> tuple[TrafficRate, ...]:
    """Return the mean rates between consecutive samples. Omit periods without a rate."""
    return tuple(_each_rate(samples))


def _each_rate(samples: Sequence[TrafficSample]) -> Iterator[TrafficRate]:
    for before, after in pairwise(samples):
        seconds = (after.at - before.at).total_seconds()
        increases = find_increases(before, after)
        if increases is not None and 0 < seconds <= MAX_PERIOD_S:
            rates = dict(zip(COUNTERS, (round(increase / seconds, 2) for increase in increases), strict=True))
            yield TrafficRate(ends=after.at, seconds=round(seconds, 3), **rates)


def format_samples(samples: Sequence[TrafficSample]) -> str:
    """Return samples as a text for the database."""
    return json.dumps(
        [[round(one.at.timestamp(), 3), one.port, *one.counters] for one in samples], separators=(",", ":")
    )


def parse_samples(text: str) -> tuple[TrafficSample, ...]:
    """Parse the text of `format_samples`."""
    return tuple(
        TrafficSample(datetime.fromtimestamp(seconds, UTC), port, (first, second, third, fourth))
        for seconds, port, first, second, third, fourth in json.loads(text)
    )
