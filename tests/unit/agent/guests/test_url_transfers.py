"""Tests of transfers of images from URLs: slow servers, permitted URLs, and servers with several addresses."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from virtcloud.agent.guests import url_transfers
from virtcloud.agent.guests.url_transfers import open_url
from virtcloud.model.errors import Refused, Unreachable

HEADERS = b"HTTP/1.1 200 OK\r\nx-slow: "
CHUNK_SIZE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;"
HANDSHAKE = b"\x16\x03\x03\x40\x00"


@contextmanager
def dripping_server(beginning: bytes) -> Iterator[int]:

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(beginning)
            while True:
                time.sleep(0.02)
                connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("scheme", "beginning"),
    [("http", HEADERS), ("http", CHUNK_SIZE), ("https", HANDSHAKE)],
    ids=["headers", "chunk-size", "handshake"],
)
def test_a_server_that_sends_byte_by_byte_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, scheme: str, beginning: bytes
) -> None:
    monkeypatch.setattr(url_transfers, "TIMEOUT_S", 0.2)
    with dripping_server(beginning) as port, pytest.raises(Unreachable, match=r"less than 65536 bytes within 0\.2 s"):
        receive(f"{scheme}://127.0.0.1:{port}/disk")


def receive(url: str) -> bytes:
    with open_url(url, 0, None, (url,)) as transfer:
        return b"".join(transfer.chunks)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost.attacker.example/images/disk",
        "http://localhost@127.0.0.1/images/disk",
        "http://localhost/images/../secret",
        "http://localhost/images/%2e%2E/secret",
    ],
)
@pytest.mark.parametrize("beginning", ["http://localhost", "http://localhost/images/"])
def test_only_urls_below_a_permitted_beginning_are_fetched(url: str, beginning: str) -> None:
    with pytest.raises(Refused, match="this host fetches images only from"), open_url(url, 0, None, (beginning,)):
        pass


@pytest.mark.parametrize("address", ["64:ff9b::a00:1", "64:ff9b::7f00:1", "::10.0.0.1", "2002:a00:1::1", "224.0.0.1"])
def test_an_internal_ipv4_address_in_ipv6_is_not_public(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(Refused, match="expected a public address"), open_url(f"http://{host}:9/", 0, None, None):
        pytest.fail("fetched")


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    resolve_really = socket.getaddrinfo

    def resolve(host: str, port: int, *_args: object, **_options: object) -> list[tuple[object, ...]]:
        found = addresses if host == "mirror.example" else (host,)
        return [answer for address in found for answer in resolve_really(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def answer_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndisk")


def test_a_server_is_reached_at_its_second_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens at the first address.

    A host without IPv6 is in the same situation if the server's first address is an IPv6 address.
    """
    with socket.socket() as closed, socket.socket() as listener:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        listener.bind(("127.0.0.2", port))
        listener.listen()
        monkeypatch.setattr(url_transfers, "is_public", lambda _: True)
        resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
        answer = threading.Thread(target=answer_once, args=(listener,), daemon=True)
        answer.start()
        with open_url(f"http://mirror.example:{port}/", 0, None, None) as transfer:
            assert b"".join(transfer.chunks) == b"disk"
        answer.join()


def test_a_silent_address_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        limits.append(round(timeout_s))
        raise TimeoutError(f"{address[0]} timed out")

    url = "http://mirror.example/"
    resolve_to(monkeypatch, "192.0.2.1", "192.0.2.2", "192.0.2.3")
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(Unreachable, match=r"192\.0\.2\.3 timed out"), open_url(url, 0, None, (url,)):
        pytest.fail("fetched")
    assert limits == [20, 30, 60]
