"""A connection to SBF: calls, files and timeouts. Only this module, `http_clients` and `http_errors` import httpx."""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import NoReturn, Self, TypeVar

import httpx
from pydantic import ValidationError

from virtcloud import __version__
from virtcloud.client.credentials import TokenSource, name_token_file, no_token
from virtcloud.client.http_clients import (
    SYSTEM_TRUST,
    ProcessHttpClient,
    TlsTrust,
    build_http_client,
    build_tls_context,
)
from virtcloud.client.http_errors import error_of_answer, error_of_response, explain_request_error
from virtcloud.client.session_stream import HandshakeRefusedError, SessionStream, open_stream
from virtcloud.current_call import current_call
from virtcloud.model.call_context import REQUEST_ID_HEADER, TRACE_HEADER, RequestId
from virtcloud.model.document import Document
from virtcloud.model.errors import AnswerUnreadable, BadInput, ServiceUnreachable, VirtcloudError
from virtcloud.model.validation_errors import locate_first_fault
from virtcloud.tracing import current_traceparent

LONGEST_WAIT_S = 60.0
TRANSFER_S = 60.0
"""The minimum timeout in seconds for each chunk of a file that is sent or received."""
PARTIAL_CONTENT = 206
NOT_MODIFIED = 304
CONNECT_S = 5.0
USER_AGENT = f"virtcloud/{__version__}"
"""This client's User-Agent (RFC 9110, 10.1.5).

SBF treats a client that sends httpx's default User-Agent as a client of version 0.1.
"""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SbfResponse:
    """The answer of SBF to a successful call."""

    url: str
    path: str
    content: bytes
    etag: str | None = None
    date: str | None = None
    cursor: str | None = None
    """The position of the next page of a list, or None after the last page."""
    is_unchanged: bool = False
    """Whether SBF answered 304: the document still has the entity tag of ``If-None-Match``."""

    def read(self, parse: Callable[[bytes], R]) -> R:
        """Return ``parse(content)``. Raise AnswerUnreadable if the answer is invalid in this version of the API."""
        try:
            return parse(self.content)
        except ValidationError as error:
            fault = locate_first_fault(error)
            raise AnswerUnreadable(
                f"the server at {self.url} is not an SBF of this version: its answer for {self.path} is invalid: "
                f"{fault}; check the address, and upgrade the older side",
                fault,
            ) from error


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """A file that is being received. ``start`` is the offset of the first byte of ``chunks`` in the file."""

    start: int
    etag: str | None
    chunks: Iterator[bytes]


class Connection:
    """The HTTP connections to SBF at ``url``; see :class:`virtcloud.client.sbf.SbfClient`."""

    def __init__(self, url: str, timeout: float, token: TokenSource = no_token, trust: TlsTrust = SYSTEM_TRUST) -> None:
        """Prepare the connections without sending a call. Raise BadInput for an invalid address."""
        self.url = url
        self._timeout = timeout
        self.token = token
        self.trust = trust
        self._http = ProcessHttpClient(url, trust)

    def with_timeout(self, seconds: float) -> Self:
        """Return a connection with another timeout. Both objects share the HTTP connections and the TLS context."""
        other = copy(self)
        other._timeout = seconds  # noqa: SLF001 - of this class
        return other

    def __copy__(self) -> Self:
        """Return a shallow copy that shares the HTTP connections."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: open connections and the token cannot be sent to another process."""
        raise TypeError(
            f"expected an object that pickle can send to another process, got an object with the connections to SBF at "
            f"{self.url}: pass the cluster's key instead, and create a client in each process, for example "
            f"Client({self.url!r}).get(key)"
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(  # noqa: PLR0913 - each argument is a part of the HTTP request
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        query: Mapping[str, str | float | Sequence[str] | None] | None = None,
        wait: float = 0,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> SbfResponse:
        """Send a call and return the answer. ``wait`` seconds are added to the timeout of the call.

        The body omits keys that have their default value, because an older SBF rejects unknown keys. Raise
        ServiceUnreachable if SBF does not answer. For a problem document, raise the error of its type.
        """
        content = None if body is None else body.model_dump_json(exclude_defaults=True).encode()
        headers = self._headers() | ({} if content is None else {"content-type": "application/json"})
        if if_match is not None:
            headers["if-match"] = if_match
        if if_none_match is not None:
            headers["if-none-match"] = if_none_match
        params = {key: value for key, value in (query or {}).items() if value is not None}
        timeout = httpx.Timeout(self._timeout + wait, connect=min(self._timeout, CONNECT_S))
        try:
            answer = self._http.get().request(
                method, path, content=content, headers=headers, params=params, timeout=timeout
            )
        except httpx.RequestError as error:
            raise ServiceUnreachable(explain_request_error(self.url, error)) from error
        is_unchanged = answer.status_code == NOT_MODIFIED and if_none_match is not None
        if not answer.is_success and not is_unchanged:
            raise self._error_of(self.url, answer)
        etag, date = answer.headers.get("etag"), answer.headers.get("date")
        return SbfResponse(self.url, path, answer.content, etag, date, _find_cursor(answer), is_unchanged)

    def upload(
        self,
        path: str,
        content: Iterable[bytes],
        size: int,
        query: Mapping[str, str],
        url: str | None = None,
    ) -> SbfResponse:
        """Send a file of ``size`` bytes with PUT. Return the answer. The timeout applies to each part of the file.

        ``url`` is the address of the replica that receives the file, or None for the address of this connection.
        """
        address = url or self.url
        headers = {**self._headers(), "content-type": "application/octet-stream", "content-length": str(size)}
        timeout = httpx.Timeout(max(self._timeout, TRANSFER_S), connect=min(self._timeout, CONNECT_S))
        try:
            with self._open_http(address) as http:
                answer = http.put(path, content=content, headers=headers, params=dict(query), timeout=timeout)
        except httpx.RequestError as error:
            raise ServiceUnreachable(explain_request_error(address, error)) from error
        if not answer.is_success:
            raise self._error_of(address, answer)
        return SbfResponse(address, path, answer.content)

    @contextmanager
    def download(self, path: str, offset: int, etag: str | None) -> Iterator[FileTransfer]:
        """Yield a file from byte ``offset`` on if ``etag`` is the file's entity tag, otherwise from byte 0.

        Raise ServiceUnreachable if the connection ends before the end of the file.
        """
        headers = self._headers()
        if offset and etag:
            headers |= {"range": f"bytes={offset}-", "if-range": etag}
        timeout = httpx.Timeout(max(self._timeout, TRANSFER_S), connect=min(self._timeout, CONNECT_S))
        try:
            with self._http.get().stream("GET", path, headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._error_of(self.url, answer)
                start = offset if answer.status_code == PARTIAL_CONTENT else 0
                yield FileTransfer(start, answer.headers.get("etag"), answer.iter_raw())
        except httpx.RequestError as error:
            raise ServiceUnreachable(explain_request_error(self.url, error)) from error

    def _error_of(self, url: str, answer: httpx.Response) -> VirtcloudError:
        return name_token_file(error_of_response(url, answer), self.token)

    def _headers(self) -> dict[str, str]:
        """Return the headers of a call.

        Raise BadInput after ``close``. Without this check, httpx would raise a RuntimeError for the call.
        """
        if self._http.is_closed:
            raise BadInput(
                "this client is closed: expected all calls before the client is closed, or within the client's "
                "'with' block"
            )
        token = self.token()
        return {"user-agent": USER_AGENT, **call_headers()} | (
            {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
        )

    def open_stream(
        self, path: str, query: Mapping[str, str | float | None], wait: float = 0, url: str | None = None
    ) -> SessionStream:
        """Open a byte stream in both directions (WebSocket) to the replica ``url`` (None: the connection's address).

        ``wait`` seconds are added to the timeout. Raise BadInput if ``url`` is without TLS although this connection
        uses TLS, or if the package websockets is missing. Raise ServiceUnreachable if the replica does not answer.
        """
        address = url or self.url
        self._check_encryption(address)
        scheme = address.partition(":")[0]
        token = self.token()
        headers = {} if token is None else {"authorization": f"Bearer {token.get_secret_value()}"}
        params = {key: str(value) for key, value in query.items() if value is not None}
        context = build_tls_context(scheme, self.trust)
        tls = context if isinstance(context, ssl.SSLContext) else None
        try:
            return open_stream(address, path, params, headers, USER_AGENT, tls, timeout=self._timeout + wait)
        except HandshakeRefusedError as error:
            refused = error_of_answer(address, error.status, error.content, path)
            raise name_token_file(refused, self.token) from error

    def _check_encryption(self, address: str) -> None:
        if self.url.startswith("https:") and not address.startswith("https:"):
            raise BadInput(f"{address}: expected https, because the token would cross a network unencrypted")

    @contextmanager
    def _open_http(self, url: str) -> Iterator[httpx.Client]:
        if url == self.url:
            yield self._http.get()
            return
        self._check_encryption(url)
        with build_http_client(url, self.trust) as http:
            yield http

    def poll(
        self,
        path: str,
        after: int | None,
        wait: float,
        query: Mapping[str, str | Sequence[str]] | None = None,
        if_none_match: str | None = None,
    ) -> SbfResponse:
        """Get a document. Without ``after``, SBF answers immediately.

        With ``after``, wait up to ``wait`` seconds, at most 60, for a version above ``after`` (long poll). With
        ``if_none_match``, SBF may answer that the document with this entity tag has not changed.
        """
        if after is None:
            return self.send("GET", path, query=query)
        wait, query = min(wait, LONGEST_WAIT_S), {**(query or {}), "after": str(after)}
        return self.send("GET", path, query={**query, "wait": wait}, wait=wait, if_none_match=if_none_match)


def _find_cursor(answer: httpx.Response) -> str | None:
    """Return the cursor of the next page from the header ``Link`` (RFC 8288)."""
    address = answer.links.get("next", {}).get("url")
    return None if address is None else httpx.URL(address).params.get("cursor")


def call_headers() -> dict[str, str]:
    """Return the headers with the request ID and the trace context of the current call.

    The current span's trace context takes precedence over the call's. Return {} if there is no current call, or if its
    request ID is invalid.
    """
    call = current_call()
    if call is None or not RequestId.matches(call.request_id):
        return {}
    trace = current_traceparent() or call.traceparent
    return {REQUEST_ID_HEADER: call.request_id, **({} if trace is None else {TRACE_HEADER: trace})}
