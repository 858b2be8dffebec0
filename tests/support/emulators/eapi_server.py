"""Arista's eAPI for an emulated switch: JSON-RPC over HTTPS on the loopback interface."""

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.emulators.terminal import Hangup

HOST = "127.0.0.1"
UNAUTHORIZED = b"Unable to authenticate user: Bad username/password combination"


class CommandFault(Exception):
    """A command failed; the exception's text is the message. The previous commands of the request remain in effect."""


class EapiDevice(Protocol):
    """The methods of a switch that the eAPI server calls."""

    username: str
    password: str
    address: str
    certificate: str
    off: bool
    closing: threading.Event

    def run_commands(self, commands: list[Any], encoding: str) -> list[dict[str, Any]]: ...


D = TypeVar("D", bound=EapiDevice)


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-length"]))
        device = self.server.device
        login = base64.b64encode(f"{device.username}:{device.password}".encode()).decode()
        if self.headers["Authorization"] != f"Basic {login}":
            self._send(401, UNAUTHORIZED)
            return
        request = json.loads(body)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        done: list[dict[str, Any]] = []
        try:
            params = request["params"]
            done = device.run_commands(params["cmds"], params["format"])
            answer["result"] = done
        except CommandFault as fault:
            answer["error"] = {"code": 1002, "message": str(fault), "data": [{"errors": [str(fault)]}]}
        except Hangup:
            self.close_connection = True
            return
        self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print no log lines."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    device: EapiDevice

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect or reject the certificate."""

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self.device.off:
            connection.close()
            raise ConnectionAbortedError("the switch is off")
        return _tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address


@contextlib.contextmanager
def listening(device: D) -> Iterator[D]:
    """Serve a switch on a free port of the loopback interface during the context.

    Set the switch's ``address`` and ``certificate`` before yielding the switch.
    """
    server = _Server((HOST, 0), _Handler)
    server.device = device
    device.address = f"{HOST}:{server.server_address[1]}"
    device.certificate = _pem()[0]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield device
    finally:
        device.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pem"
        file.write_text("".join(_pem()))
        context.load_cert_chain(file)
    return context


@cache
def _pem() -> tuple[str, str]:
    return self_signed("self.signed")


def self_signed(name: str) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    text = certificate.public_bytes(serialization.Encoding.PEM).decode()
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return text, private.decode()
