"""The HTTP clients for an address of SBF: TLS, plain HTTP, or a Unix domain socket."""

import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

from virtcloud.model.errors import BadInput

CONNECTION_LIMITS = httpx.Limits(max_keepalive_connections=20)
"""At most 20 idle connections stay open.

The number of connections in use is not limited, because an agent's long polls must not delay the agent's other calls.
"""

LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """The client's certificate, and the trusted certificate authorities (``None``: the operating system's list)."""

    ca_file: str | Path | None = None
    certificate: str | Path | None = None


SYSTEM_TRUST = TlsTrust()


class ProcessHttpClient:
    """The HTTP client for an address, with separate connections in each process.

    After os.fork, both processes have the open connections. If both used them, a process could receive the answers to
    the calls of the other process. Therefore the new process opens its own connections.
    """

    def __init__(self, url: str, trust: TlsTrust) -> None:
        """Build the client for this process. Raise BadInput for an invalid address or certificate."""
        self._url = url
        self._trust = trust
        self._clients = {os.getpid(): build_http_client(url, trust)}
        """The client of each process, by process ID.

        A forked process inherits the clients of earlier processes, and does not close them: their connections belong to
        the earlier processes, and another thread may have locked them at the time of the fork.
        """
        self.is_closed = False
        """Whether `close` was called in this process, or in an earlier process before the fork."""

    def get(self) -> httpx.Client:
        """Return the client of the present process. Thread-safe. Raise BadInput if a certificate has become invalid."""
        process = os.getpid()
        found = self._clients.get(process)
        # Two threads may build a client at the same time. Both threads then use the client that was stored first.
        return found or self._clients.setdefault(process, build_http_client(self._url, self._trust))

    def close(self) -> None:
        """Close the connections of the present process."""
        self.is_closed = True
        found = self._clients.get(os.getpid())
        if found is not None:
            found.close()


def build_http_client(url: str, trust: TlsTrust) -> httpx.Client:
    """Return a client with its own connections to ``url``. Raise BadInput for an invalid address or certificate."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BadInput(
            f"{url!r} is not an address of SBF: {error}; expected http://host:port or unix:///path"
        ) from error
    if parsed.userinfo:
        raise BadInput(
            "the address of SBF: expected no user name and no password, got a user name or a password: use a token "
            "file instead"
        )
    if parsed.scheme == "unix" and parsed.path.strip("/") and not parsed.host:
        return httpx.Client(transport=_UnixTransport(parsed.path), base_url="http://sbf", trust_env=False)
    if parsed.scheme in {"http", "https"} and parsed.host and (parsed.port or 0) <= LAST_PORT:
        context = build_tls_context(parsed.scheme, trust)
        return httpx.Client(base_url=url, trust_env=False, verify=context, limits=CONNECTION_LIMITS)
    raise BadInput(f"{url!r} is not an address of SBF: expected http://host:port, https://host or unix:///path")


def build_tls_context(scheme: str, trust: TlsTrust) -> ssl.SSLContext | bool:
    """Return the TLS context (TLS 1.2 or later), or False for plain HTTP. Raise BadInput for an unreadable file."""
    if scheme != "https":
        return False
    try:
        context = ssl.create_default_context(cafile=trust.ca_file)
    except OSError as error:
        raise BadInput(f"CA file {trust.ca_file}: expected certificates (PEM): {error.strerror or error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if trust.certificate is not None:
            context.load_cert_chain(trust.certificate, password=lambda: "")
    except OSError as error:
        raise BadInput(
            f"certificate file {trust.certificate}: expected a certificate and its key (PEM, the key without a "
            f"password): {error.strerror or error}"
        ) from error
    return context


class _UnixTransport(httpx.HTTPTransport):
    """A transport over a Unix domain socket. If the connection fails, the transport leaves no socket open.

    After a failed connect(), httpcore 1.0 does not close the socket (ResourceWarning). Therefore the transport first
    connects another socket as a test.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            uds=path, verify=False, limits=CONNECTION_LIMITS
        )  # verify=False, because a Unix socket uses no TLS, and loading the list of authorities takes time
        self._path = path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(request.extensions["timeout"]["connect"])  # a server that hangs accepts no connection
                probe.connect(self._path)
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return super().handle_request(request)
