"""TLS on the TCP address: the certificate, read anew on SIGHUP, and who of the callers must show one."""

import ssl
from pathlib import Path

from sbf_service.log import get_log
from sbf_service.settings import Settings
from virtcloud.model.errors import BadInput

log = get_log(__name__)


def make_context(settings: Settings) -> ssl.SSLContext | None:
    """Make the server's side of TLS 1.2 or later; None where no certificate is set. Raises BadInput."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, settings.tls_certificate, settings.tls_key)
    if settings.tls_client_ca is not None:
        _load_authority(context, settings.tls_client_ca)
    return context


def read_again(context: ssl.SSLContext, settings: Settings) -> None:
    """Take the certificate that the files hold now, for connections to come; one that cannot be is not taken."""
    try:
        make_context(settings)  # so that a pair that does not fit leaves the old one whole
        if settings.tls_certificate is not None and settings.tls_key is not None:
            _load_pair(context, settings.tls_certificate, settings.tls_key)
    except BadInput as error:
        log.warning("certificate_not_taken", why=error)
    else:
        log.info("certificate_taken", file=settings.tls_certificate)


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        raise BadInput(
            f"tls_certificate = '{certificate}', tls_key = '{key}': expected a certificate and its key (PEM, the key "
            f"without a password): {_why(error)}"
        ) from error


def _load_authority(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise BadInput(f"tls_client_ca = '{authority}': expected certificates (PEM): {_why(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    """Give a password that fits nothing: OpenSSL would ask at the terminal."""
    return ""


def _why(error: OSError) -> str:
    return error.strerror or getattr(error, "reason", None) or str(error)
