import pytest

from virtcloud.model.durations import format_duration, parse_duration
from virtcloud.model.errors import BadInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("4h", 14400),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("0.2s", 0.2),
    ],
)
def test_a_duration_is_parsed_to_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["", "4", "4x", "h", "-4h", "4 h", "4h5", "four hours", "1e3s", "1" * 60_000])
def test_a_malformed_duration_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="expected a duration such as 90s, 15m, 4h, 1d or 1h30m, got"):
        parse_duration(text)


def test_zero_is_no_duration() -> None:
    with pytest.raises(BadInput, match="expected a duration longer than zero, got '0s'"):
        parse_duration("0s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (5400, "1h30m"), (90061, "1d1h"), (86400, "1d")]
)
def test_a_duration_is_formatted_with_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_duration_can_be_formatted_to_the_second() -> None:
    assert format_duration(20001, max_parts=4) == "5h33m21s"
