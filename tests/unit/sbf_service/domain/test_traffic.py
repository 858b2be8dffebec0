"""Tests of rates between samples of traffic counters."""

from datetime import UTC, datetime, timedelta

from sbf_service.domain.traffic import (
    MAX_SAMPLES,
    TrafficSample,
    add_sample,
    compute_rates,
    format_samples,
    parse_samples,
)

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


def sample(seconds: float, *counters: int, port: str = "eth0.100#7") -> TrafficSample:
    received, sent, received_frames, sent_frames = counters
    return TrafficSample(START + timedelta(seconds=seconds), port, (received, sent, received_frames, sent_frames))


def received(*samples: TrafficSample) -> list[float]:
    return [rate.received_bytes for rate in compute_rates(samples)]


def test_a_rate_is_the_increase_per_second() -> None:
    (rate,) = compute_rates([sample(0, 1000, 500, 10, 5), sample(30, 4000, 800, 40, 35)])
    assert (rate.received_bytes, rate.sent_bytes, rate.received_frames, rate.sent_frames) == (100, 10, 1, 1)
    assert (rate.ends, rate.seconds) == (START + timedelta(seconds=30), 30)


def test_one_sample_has_no_rate() -> None:
    """The counters of an uplink contain the traffic since the boot of the host."""
    assert received(sample(0, 10**15, 0, 0, 0)) == []


def test_a_reset_counter_has_no_rate() -> None:
    samples = sample(0, 9000, 0, 0, 0), sample(30, 300, 0, 0, 0), sample(60, 600, 0, 0, 0)
    assert received(*samples) == [10]


def test_one_reset_counter_of_four_is_a_reset() -> None:
    assert received(sample(0, 10, 0, 0, 5), sample(30, 3010, 0, 0, 4)) == []


def test_counters_of_another_port_are_not_compared() -> None:
    """The segment moves from a tagged interface to an uplink, which has counted since the host's boot."""
    assert received(sample(0, 10, 0, 0, 0), sample(30, 10**15, 0, 0, 0, port="eth1#2")) == []


def test_an_interface_that_was_created_again_has_no_rate() -> None:
    assert received(sample(0, 10, 0, 0, 0), sample(30, 900, 0, 0, 0, port="eth0.100#8")) == []


def test_a_long_silence_has_no_rate() -> None:
    assert received(sample(0, 0, 0, 0, 0), sample(901, 9010, 0, 0, 0)) == []


def test_samples_at_the_same_time_have_no_rate() -> None:
    assert received(sample(0, 0, 0, 0, 0), sample(0, 10, 0, 0, 0)) == []


def test_a_sample_within_five_seconds_of_another_is_not_added() -> None:
    first = sample(0, 0, 0, 0, 0)
    assert add_sample([first], sample(4.9, 10, 0, 0, 0)) is None
    assert add_sample([first], sample(5, 10, 0, 0, 0)) is not None


def test_the_number_of_samples_is_bounded() -> None:
    samples: tuple[TrafficSample, ...] = ()
    for number in range(2 * MAX_SAMPLES):
        samples = add_sample(samples, sample(30 * number, number, 0, 0, 0)) or ()
    assert [one.counters[0] for one in samples] == list(range(MAX_SAMPLES, 2 * MAX_SAMPLES))


def test_formatted_samples_are_parsed_unchanged() -> None:
    samples = (sample(0.125, 2**63 - 1, 1, 2, 3), sample(30, 2**63 - 1, 4, 5, 6))
    assert parse_samples(format_samples(samples)) == samples
