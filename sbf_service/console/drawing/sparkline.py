"""The drawing of a cluster's traffic: a small chart for each host and gateway. Pure.

All charts of a cluster show the same minutes on the same scale. A line has a gap where no rate is known.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from virtcloud.model.traffic import ElementTraffic, TrafficRate

WIDTH: Final = 240.0
HEIGHT: Final = 40.0
MARGIN: Final = 2.0
WINDOW: Final = timedelta(minutes=15)
FRESH: Final = timedelta(minutes=2)
"""The last period's rate counts as the present rate if the period ended at most this time ago."""
TOUCH_S: Final = 1.0
"""Two periods are consecutive if the pause between them is at most this time."""
MAX_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class TrafficChart:
    """The traffic at one element: the present and highest rates, and the points of the lines."""

    element: str
    site: str
    reported_at: datetime
    received: float | None
    sent: float | None
    frames: float | None
    """The present rates per second: ``received`` and ``sent`` bytes, and ``frames``. None without a recent report."""
    received_peak: float
    sent_peak: float
    received_lines: tuple[str, ...]
    sent_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrafficCharts:
    """The charts of a cluster.

    ``peak`` is the rate at the top of all charts, in bytes per second. ``omitted`` is the number of elements
    without a chart.
    """

    charts: tuple[TrafficChart, ...]
    peak: float
    omitted: int


def draw_traffic(found: Sequence[ElementTraffic], now: datetime) -> TrafficCharts:
    """Return the charts of a cluster, which end at ``now``.

    If the last report is later than ``now`` (the database's clock can be ahead), the charts end at the report's time.
    """
    shown, now = found[:MAX_ROWS], max([now, *(one.reported_at for one in found)])
    recent = {one.element: [rate for rate in one.rates if rate.ends > now - WINDOW] for one in shown}
    peak = max((_peak(rates, key) for rates in recent.values() for key in (_received, _sent)), default=0.0)
    return TrafficCharts(
        tuple(_draw(one, recent[one.element], now, peak) for one in shown), peak, len(found) - len(shown)
    )


def _draw(traffic: ElementTraffic, rates: Sequence[TrafficRate], now: datetime, peak: float) -> TrafficChart:
    last = rates[-1] if rates and now - rates[-1].ends <= FRESH else None
    return TrafficChart(
        str(traffic.element),
        str(traffic.site),
        traffic.reported_at,
        None if last is None else last.received_bytes,
        None if last is None else last.sent_bytes,
        None if last is None else last.received_frames + last.sent_frames,
        _peak(rates, _received),
        _peak(rates, _sent),
        tuple(_each_line(rates, _received, now, peak)),
        tuple(_each_line(rates, _sent, now, peak)),
    )


RateOf = Callable[[TrafficRate], float]


def _received(rate: TrafficRate) -> float:
    return rate.received_bytes


def _sent(rate: TrafficRate) -> float:
    return rate.sent_bytes


def _peak(rates: Iterable[TrafficRate], key: RateOf) -> float:
    return max(map(key, rates), default=0.0)


def _each_line(rates: Iterable[TrafficRate], key: RateOf, now: datetime, peak: float) -> Iterator[str]:
    """Yield the points of a line for each sequence of consecutive periods. A period is a horizontal step."""
    points: list[str] = []
    end: datetime | None = None
    for rate in rates:
        begins = rate.ends - timedelta(seconds=rate.seconds)
        if end is not None and (begins - end).total_seconds() > TOUCH_S:
            yield " ".join(points)
            points = []
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (key(rate) / peak if peak else 0.0)
        points += [f"{_x(moment, now):.1f},{y:.1f}" for moment in (begins, rate.ends)]
        end = rate.ends
    if points:
        yield " ".join(points)


def _x(moment: datetime, now: datetime) -> float:
    age = (now - moment) / WINDOW
    return min(WIDTH, max(0.0, WIDTH * (1 - age)))
