"""Tests of log events about certificates that have expired, expire soon, or are not valid yet."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.programs.tls import DAY, Authority

from sbf_service.certificate_dates import log_certificate_dates
from sbf_service.settings import ServiceSettings
from virtcloud.model.values import format_utc


def make_settings(folder: Path, begins: timedelta, ends: timedelta) -> ServiceSettings:
    certificate, key = Authority("authority").sign(folder, "sbf", begins, ends)
    return ServiceSettings(tls_certificate=certificate, tls_key=key)


def read_log(settings: ServiceSettings, caplog: pytest.LogCaptureFixture) -> str:
    log_certificate_dates(settings, datetime.now(UTC))
    return caplog.text


def test_an_expired_certificate_is_logged_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = read_log(make_settings(tmp_path, -3 * DAY, -DAY), caplog)
    assert f"certificate_not_valid file={tmp_path}/sbf.crt setting=tls_certificate" in text
    assert f"it expired at {format_utc(datetime.now(UTC) - DAY)[:10]}" in text
    assert "reload SBF (systemctl reload virtcloud-sbf)" in text


def test_a_certificate_of_the_future_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = read_log(make_settings(tmp_path, DAY, 30 * DAY), caplog)
    assert "certificate_not_valid" in text
    assert f"it is valid from {format_utc(datetime.now(UTC) + DAY)[:10]}" in text


@pytest.mark.parametrize(("days", "is_logged"), [(13, True), (15, False)])
def test_a_certificate_is_logged_two_weeks_before_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, is_logged: bool
) -> None:
    text = read_log(make_settings(tmp_path, -DAY, days * DAY), caplog)
    assert ("certificate_expires_soon" in text) is is_logged


def test_an_expired_intermediate_certificate_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = make_settings(tmp_path, -DAY, 30 * DAY)
    expired, _ = Authority("root").sign(tmp_path, "intermediate", -3 * DAY, -DAY)
    certificate = tmp_path / "sbf.crt"
    certificate.write_bytes(certificate.read_bytes() + expired.read_bytes())
    text = read_log(settings, caplog)
    assert (text.count("certificate_not_valid"), "2 of 2" in text) == (1, True)


def test_an_expired_authority_of_clients_needs_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = make_settings(tmp_path, -DAY, 30 * DAY)
    expired, _ = Authority("root").sign(tmp_path, "clients", -3 * DAY, -DAY)
    text = read_log(settings.model_copy(update={"tls_client_ca": expired}), caplog)
    assert "setting=tls_client_ca" in text
    assert "reload SBF (systemctl reload virtcloud-sbf)" in text


@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_the_check_of_dates_ignores_an_unreadable_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """SBF logs another event about the unreadable file."""
    if content is not None:
        (tmp_path / "sbf.crt").write_bytes(content)
    settings = ServiceSettings(tls_certificate=tmp_path / "sbf.crt", tls_key=tmp_path / "sbf.key")
    assert not read_log(settings, caplog)
