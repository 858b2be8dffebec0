"""Tests of the charts of a cluster's traffic."""

from datetime import UTC, datetime, timedelta

from sbf_service.console.drawing.sparkline import HEIGHT, MARGIN, WIDTH, draw_traffic
from virtcloud.model.traffic import ElementTraffic, TrafficRate
from virtcloud.model.values import Name

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def rate(minutes_ago: float, received: float, sent: float = 0.0, seconds: float = 30.0) -> TrafficRate:
    return TrafficRate(
        ends=NOW - timedelta(minutes=minutes_ago),
        seconds=seconds,
        received_bytes=received,
        sent_bytes=sent,
        received_frames=received / 100,
        sent_frames=sent / 100,
    )


def host(name: str, *rates: TrafficRate) -> ElementTraffic:
    return ElementTraffic(element=Name(name), site=Name("brno"), reported_at=NOW, rates=rates)


def points(line: str) -> list[tuple[float, float]]:
    found = (point.split(",") for point in line.split())
    return [(float(x), float(y)) for x, y in found]


def test_the_last_rate_is_the_present_rate() -> None:
    (chart,) = draw_traffic([host("h1", rate(0.5, 10, 20), rate(0, 100, 50))], NOW).charts
    assert (chart.received, chart.sent, chart.frames) == (100, 50, 1.5)
    assert (chart.received_peak, chart.sent_peak) == (100, 50)


def test_an_old_rate_is_not_the_present_rate() -> None:
    (chart,) = draw_traffic([host("h1", rate(3, 10, 20))], NOW).charts
    assert (chart.received, chart.received_peak) == (None, 10)


def test_all_charts_have_the_same_scale() -> None:
    drawn = draw_traffic([host("h1", rate(0, 100)), host("h2", rate(0, 50))], NOW)
    tops = [min(y for _, y in points(chart.received_lines[0])) for chart in drawn.charts]
    assert (drawn.peak, tops) == (100, [MARGIN, HEIGHT / 2])


def test_a_period_without_a_rate_is_a_gap() -> None:
    (chart,) = draw_traffic([host("h1", rate(2, 10), rate(1.5, 10), rate(0.5, 10))], NOW).charts
    assert [len(points(line)) for line in chart.received_lines] == [4, 2]


def test_the_chart_ends_now_and_begins_fifteen_minutes_ago() -> None:
    """The chart shows only the end of the first period, which began more than fifteen minutes ago."""
    (chart,) = draw_traffic([host("h1", rate(14.9, 10), rate(0, 10))], NOW).charts
    xs = [x for line in chart.received_lines for x, _ in points(line)]
    assert (min(xs), max(xs)) == (0, WIDTH)


def test_no_traffic_is_a_line_at_the_bottom() -> None:
    (chart,) = draw_traffic([host("h1", rate(0, 0))], NOW).charts
    assert {y for _, y in points(chart.received_lines[0])} == {HEIGHT - MARGIN}


def test_the_clock_of_the_database_may_be_ahead() -> None:
    ahead = host("h1", rate(-1, 10)).model_copy(update={"reported_at": NOW + timedelta(minutes=1)})
    (chart,) = draw_traffic([ahead], NOW).charts
    assert max(x for x, _ in points(chart.received_lines[0])) == WIDTH


def test_a_cluster_without_reports_has_no_charts() -> None:
    assert draw_traffic([], NOW).charts == ()
