from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.model.errors import ServiceStopping, ServiceUnreachable, TooManyRequests


def test_the_longer_of_pause_and_retry_after_applies() -> None:
    assert compute_retry_pause(ServiceStopping("stops", 12), 2, lambda: 0) == 12
    assert compute_retry_pause(TooManyRequests("slower", 1), 2, lambda: 0) == 2
    assert compute_retry_pause(ServiceUnreachable("silent"), 2, lambda: 0) == 2


def test_a_long_retry_after_is_limited() -> None:
    assert compute_retry_pause(TooManyRequests("slower", 3600), 2, lambda: 0) == 100
    assert compute_retry_pause(TooManyRequests("slower", 3600), 120, lambda: 0) == 120


def test_callers_retry_at_different_times() -> None:
    assert compute_retry_pause(ServiceStopping("stops", 12), 2, lambda: 1) == 18
