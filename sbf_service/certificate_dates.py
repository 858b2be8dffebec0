"""The validity of the certificates that the settings name, for the log and the metrics."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from sbf_service.log import get_log
from sbf_service.settings import ServiceSettings
from virtcloud.model.values import format_utc

RENEWAL = timedelta(days=14)
"""SBF logs a warning if a certificate expires within this time. The alert VirtcloudCertificateExpires has this limit,
too."""
REMEDY = "write a valid certificate to the file, then reload SBF (systemctl reload virtcloud-sbf)"
log = get_log(__name__)


def log_certificate_dates(settings: ServiceSettings, now: datetime) -> None:
    """Log each certificate that is not valid at ``now``, or that expires soon.

    SBF uses the certificate nevertheless. Skip unreadable files: :mod:`sbf_service.server` reports these files.
    """
    for setting, path, certificates in read_certificates(settings):
        for number, certificate in enumerate(certificates, 1):
            found = find_date_fault(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now)
            if found is not None:
                event, why = found
                position = f"{number} of {len(certificates)}"
                log.warning(event, file=path, setting=setting, certificate=position, why=why, remedy=REMEDY)


def find_date_fault(begin: datetime, end: datetime, now: datetime) -> tuple[str, str] | None:
    """Return the event and the reason to log for a certificate with these dates, or None without a fault. Pure."""
    if now > end:
        return "certificate_not_valid", f"it expired at {format_utc(end)}"
    if now < begin:
        return "certificate_not_valid", f"it is valid from {format_utc(begin)}; the clock shows {format_utc(now)}"
    if now > end - RENEWAL:
        return "certificate_expires_soon", f"it expires at {format_utc(end)}"
    return None


def read_certificates(settings: ServiceSettings) -> Iterator[tuple[str, Path, list[x509.Certificate]]]:
    """Yield each readable certificate file: the file's setting, the path, and the certificates in the file."""
    for setting, path in (("tls_certificate", settings.tls_certificate), ("tls_client_ca", settings.tls_client_ca)):
        if path is None:
            continue
        try:
            certificates = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError):
            continue
        yield setting, path, certificates
