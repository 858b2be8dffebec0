"""The server, which listens on TCP, with TLS if configured, and on an AF_UNIX socket if configured.

The server has one process and one event loop. On SIGHUP, the server reloads the settings and the certificate, and
checks the files that the settings name.
"""

import asyncio
import resource
import signal
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from types import FrameType

import uvicorn

from sbf_service.bootstrap import SbfService
from sbf_service.certificate_dates import log_certificate_dates
from sbf_service.console.app import add_console
from sbf_service.console.oidc import log_provider_faults
from sbf_service.device_credentials import log_credential_faults
from sbf_service.http.app import answer_settled_polls, create_app
from sbf_service.http.auth.connections import PeerHttpProtocol
from sbf_service.http.routes.sessions import HANDSHAKES_TOPIC
from sbf_service.listen_sockets import listen, remove_socket_files
from sbf_service.local_listeners import CHECK_TICKS, LocalListeners
from sbf_service.log import get_log
from sbf_service.overload import AcceptFaults
from sbf_service.secret_files import log_readable_secrets
from sbf_service.settings import ServiceSettings
from sbf_service.settings_reload import EarlyReloads, reload_settings
from virtcloud.model.errors import BadInput

log = get_log(__name__)


def make_tls_context(settings: ServiceSettings) -> ssl.SSLContext | None:
    """Return the server's context for TLS 1.2 or later, or None if no certificate is configured.

    Raise BadInput for unusable certificate files.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, settings.tls_certificate, settings.tls_key)
    if settings.tls_client_ca is not None:
        _load_authority(context, settings.tls_client_ca)
    return context


class ReloadableTls:
    """TLS for the listening sockets, with a certificate that can be reloaded.

    OpenSSL stores one certificate for each type of key in a context. If a reload loaded an RSA key into a context with
    an EC key, SBF would still present the certificate with the EC key. Therefore each reload creates a context, which
    each new connection uses.
    """

    def __init__(self, listening: ssl.SSLContext) -> None:
        """Prepare ``listening``, the context of the listening sockets, for reloads."""
        self._newest = listening
        listening.sni_callback = self._use_newest

    def reload(self, settings: ServiceSettings) -> None:
        """Reload the certificate, the key and the authority (``tls_client_ca``) for new connections.

        If a file is unusable, log a warning and change nothing.
        """
        try:
            self._newest = make_tls_context(settings) or self._newest
        except BadInput as error:
            log.warning("certificate_not_reloaded", why=error)
        else:
            log.info("certificate_reloaded", file=settings.tls_certificate)

    def _use_newest(self, connection: ssl.SSLObject, _server_name: str | None, _listening: ssl.SSLContext) -> None:
        """Assign the newest context to a new connection.

        OpenSSL also calls this method for a client without SNI (RFC 6066, 3).
        """
        connection.context = self._newest


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:
        raise BadInput(
            f"tls_certificate = '{certificate}', tls_key = '{key}': expected a certificate and its key (PEM, the key "
            f"without a password): {_describe_tls_error(error)}"
        ) from error


def _load_authority(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise BadInput(
            f"tls_client_ca = '{authority}': expected certificates (PEM): {_describe_tls_error(error)}"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    """Without this callback, OpenSSL would prompt for a password on the terminal."""
    return ""


def _describe_tls_error(error: OSError) -> str:
    return error.strerror or getattr(error, "reason", None) or str(error)


PING_INTERVAL_S = 20.0
"""The interval between pings on WebSockets, in seconds. The pings prevent proxies from closing idle sessions."""
MAX_MESSAGE = 1 << 20
SHUTDOWN_GRACE_S = 5
"""A stopping service cancels unfinished calls after this time in seconds, plus the time for the answers to long polls.

This additional time is one second for each group of ``ANSWERS_PER_S`` long polls. Even with 10,000 long polls, the stop
takes less time than systemd's ``TimeoutStopSec``, which is 90 s for SBF's unit.
"""
ANSWERS_PER_S = 500
"""For each group of this many long polls, a stopping service adds one second to ``SHUTDOWN_GRACE_S``."""


REFUSALS_S = 1.0


class SbfServer(uvicorn.Server):
    """A uvicorn server that uses TLS on TCP sockets only.

    SIGTERM or SIGINT immediately ends all long polls and all sessions that wait for an agent. Other calls may finish
    within ``SHUTDOWN_GRACE_S``. The signal is not raised again after the shutdown.
    """

    service: SbfService
    config_file: Path | None = None
    early_reloads: EarlyReloads
    loop: asyncio.AbstractEventLoop | None = None
    local_listeners: LocalListeners | None = None
    tls: ReloadableTls | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening. The method of uvicorn would use TLS on all sockets or on none."""
        await super().startup([opened for opened in sockets or [] if opened.family != socket.AF_UNIX])
        self.loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptFaults())
        self.local_listeners = LocalListeners(sockets or [], self.servers, self._make_protocol)
        await self.local_listeners.start()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self.early_reloads.requested:
            self._reload()

    async def on_tick(self, counter: int) -> bool:
        """Check the files of the AF_UNIX sockets regularly. Return whether the server must stop."""
        if self.local_listeners is not None and counter % CHECK_TICKS == 0 and not self.should_exit:
            await self.local_listeners.replace_lost()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Remove the file of the AF_UNIX socket, then close the sockets and end the requests."""
        remove_socket_files(sockets or [])
        await self._await_refusals()
        await super().shutdown(sockets)

    async def _await_refusals(self) -> None:
        """Wait until SBF has refused the sessions that wait for an agent.

        Otherwise, uvicorn would answer their calls with status 500.
        """
        deadline = time.monotonic() + REFUSALS_S
        feed = self.service.change_feed
        while feed.count_waiters(HANDSHAKES_TOPIC) and time.monotonic() < deadline:  # noqa: ASYNC110 - at most 1 s
            await asyncio.sleep(0.01)

    def _make_protocol(self) -> asyncio.Protocol:
        return PeerHttpProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _reload(self) -> None:
        if self.config_file is not None:
            reload_settings(self.service.settings, self.config_file)
        _log_file_faults(self.service.settings, self.config_file)
        if self.tls is not None:
            self.tls.reload(self.service.settings)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Stop the server, and end long polls with status 503 and ``Retry-After``.

        A signal can interrupt this thread while it holds the lock of the change feed. The event loop therefore closes
        the feed later.
        """
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._close_feed)

    def _close_feed(self) -> None:
        self.service.change_feed.close()
        answers_s = self.service.change_feed.waiters_at_close // ANSWERS_PER_S
        self.config.timeout_graceful_shutdown = SHUTDOWN_GRACE_S + answers_s


def open_sockets(service: SbfService) -> list[socket.socket]:
    """Open the configured sockets. Raise BadInput for unusable certificate files, and the errors of :func:`listen`."""
    make_tls_context(service.settings)
    return listen(service.settings)


def run_server(
    service: SbfService,
    sockets: list[socket.socket],
    config_file: Path | None = None,
    early_reloads: EarlyReloads | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. On SIGHUP, reload the settings from ``config_file`` and the certificate.

    If a SIGHUP arrived during the start, reload when the server is ready.
    """
    raise_open_files()
    _log_file_faults(service.settings, config_file)
    context = make_tls_context(service.settings)
    server = SbfServer(make_server_config(service, context))
    server.tls = None if context is None else ReloadableTls(context)
    server.service, server.config_file = service, config_file
    server.early_reloads = early_reloads or EarlyReloads()
    try:
        server.run(sockets=sockets)
    finally:
        remove_socket_files(sockets)


def _log_file_faults(settings: ServiceSettings, config_file: Path | None) -> None:
    """Log the faults of the files that the settings name. SBF runs nevertheless."""
    log_credential_faults(settings)
    log_provider_faults(settings)
    log_readable_secrets(settings, config_file)
    log_certificate_dates(settings, datetime.now(UTC))


def raise_open_files() -> int:
    """Raise this process's soft limit on open files to the hard limit. Return the soft limit.

    Each waiting agent needs a connection. systemd's default limits are 1,024 (soft) and 524,288 (hard).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses the value "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def make_server_config(service: SbfService, context: ssl.SSLContext | None) -> uvicorn.Config:
    """Return uvicorn's configuration for HTTP and WebSockets, with TLS if there is a context."""
    app = create_app(service)
    return uvicorn.Config(
        answer_settled_polls(add_console(app) if service.settings.console.enabled else app),
        http=PeerHttpProtocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        lifespan="on",
        ws_ping_interval=PING_INTERVAL_S,
        ws_ping_timeout=None,
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        proxy_headers=bool(service.settings.trusted_proxies),
        forwarded_allow_ips=list(format_proxies(service.settings.trusted_proxies)),
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )


def format_proxies(trusted: Iterable[IPv4Network | IPv6Network]) -> Iterator[str]:
    """Yield each trusted network, and each IPv4 network also as IPv4-mapped network (RFC 4291, 2.5.5.2)."""
    for network in trusted:
        yield str(network)
        if network.version == 4:  # noqa: PLR2004 - the version of IP
            yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"
