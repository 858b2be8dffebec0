"""Stock ssh clients, and a gateway that runs a real sshd. All run in a network namespace of the real kernel.

A guest is one end of a socket pair. The guest first sends the network, address and port of the connection as a line,
such as ``c1 10.0.0.1/24 22``. Then the guest echoes all input.
"""

import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificate,
    SSHCertificateBuilder,
    load_ssh_private_key,
    load_ssh_public_identity,
)
from pydantic import SecretBytes

from sbf_service.domain.ssh_authority import (
    SshCertificate,
    make_gateway_view,
    make_ssh_server,
    parse_certified_key,
    sign_certificate,
)
from sbf_service.domain.ssh_key_pairs import derive_authority_key
from virtcloud.agent.gateway.ssh_gateway import SshdRecord, SshGateway
from virtcloud.model.ssh_access import SshListener
from virtcloud.model.ssh_keys import UserKey
from virtcloud.model.values import Name, UserName
from virtcloud.model.wanted import HostWanted, Segment

LISTENER = SshListener(address="127.0.0.1", port=2222)
SECRET = SecretBytes(b"s" * 32)
LIMIT_S = 20.0
GATEWAY = Name("gw")


def make_segment(
    *users: str, cluster: str = "c1", ends: datetime | None = None, guest: str = "g1", revoked: Sequence[int] = ()
) -> Segment:
    expires = ends or datetime.now(UTC) + timedelta(hours=1)
    grants = [{"cluster": cluster, "user": user, "expires_at": expires, "revoked": revoked} for user in users]
    guests = [{"cluster": cluster, "name": guest, "addresses": ["10.0.0.1/24"]}]
    ssh = {"grants": grants, "guests": guests}
    return Segment.model_validate({"id": cluster, "key": "demo", "vlan": 100, "port": "eth0", "ssh": ssh})


def permit(certificate: str, extensions: Sequence[str]) -> str:
    """Return a copy of a certificate. The same authority signs the copy.

    The copy contains ``extensions``, and does not contain the forced command of the certificate.
    """
    former = load_ssh_public_identity(certificate.encode())
    authority = load_ssh_private_key(derive_authority_key(SECRET).private.get_secret_value().encode(), None)
    assert isinstance(former, SSHCertificate)
    assert isinstance(authority, Ed25519PrivateKey)
    builder = (
        SSHCertificateBuilder()
        .public_key(former.public_key())
        .type(former.type)
        .serial(former.serial)
        .key_id(former.key_id)
        .valid_principals(list(former.valid_principals))
        .valid_after(former.valid_after)
        .valid_before(former.valid_before)
    )
    for extension in extensions:
        builder = builder.add_extension(extension.encode(), b"")
    return builder.sign(authority).public_bytes().decode()


class StockSsh:
    """OpenSSH's client, and a key with a certificate. The key's files are as `virtcloud access ssh` writes them."""

    def __init__(  # noqa: PLR0913 - tests pass the options by name
        self,
        world: "SshWorld",
        user: str = "alice",
        *,
        cluster: str = "c1",
        valid: timedelta = timedelta(minutes=10),
        secret: SecretBytes = SECRET,
        permits: Sequence[str] = (),
    ) -> None:
        """Create a key with a certificate. ``permits`` are extensions that SBF's own certificates never contain."""
        self.world = world
        self.folder = world.folder / secrets.token_hex(4)
        self.folder.mkdir(parents=True)
        key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
        self.serial = secrets.randbits(63)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        stated = SshCertificate(cluster, UserName(user), self.serial, now, now + valid)
        certificate = sign_certificate(secret, parse_certified_key(UserKey(public)), stated)
        if permits:
            certificate = permit(certificate, permits)
        view = make_gateway_view(SECRET, GATEWAY, LISTENER)
        (self.folder / "known_hosts").write_text(f"[{view.address}]:{view.port} {view.host_key}\n")
        (self.folder / "key").touch(0o600)
        (self.folder / "key").write_bytes(private)
        (self.folder / "key-cert.pub").write_text(f"{certificate}\n")

    def argv(self, command: str = "g1", *options: str) -> list[str]:
        known = ("-o", f"UserKnownHostsFile={self.folder}/known_hosts", "-o", "BatchMode=yes")
        own = ("-i", f"{self.folder}/key", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none")
        gateway = ("-p", str(LISTENER.port), f"virtcloud@{LISTENER.address}")
        return [
            *self.world.enter,
            "ssh",
            "-F",
            "none",
            *own,
            *known,
            *options,
            *gateway,
            *([command] if command else []),
        ]

    def run(self, command: str = "g1", *options: str, stdin: str = "") -> tuple[int, str, str]:
        argv = self.argv(command, *options)
        done = subprocess.run(  # noqa: S603 - ssh
            argv, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False, close_fds=False
        )
        return done.returncode, done.stdout, done.stderr

    def open(self, *options: str) -> "OpenSsh":
        return OpenSsh(self.argv("g1", *options))


class OpenSsh:
    """A connection with a guest."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - ssh
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=False
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline().decode()

    def echo(self, text: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().strip()

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class SshWorld:
    """A gateway whose sshd is running, and its guests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        os.set_inheritable(self.namespace, True)
        self.now: datetime | None = None
        self.server = make_ssh_server(SECRET, GATEWAY, LISTENER)
        self.gateways: list[SshGateway] = []
        self.gateway = self.make_gateway()

    def make_gateway(self) -> SshGateway:
        clock = lambda: self.now or datetime.now(UTC)  # noqa: E731
        self.gateways.append(SshGateway(self.folder / "ssh", connect_guest, clock))
        return self.gateways[-1]

    def grant(self, *segments: Segment) -> None:
        self.gateway.receive(HostWanted(segments=segments, ssh=self.server), segments)

    def restart_agent(self, *segments: Segment) -> None:
        self.gateway.close()
        self.gateway = self.make_gateway()
        self.grant(*segments)
        self.gateway.read()

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/self/fd/{self.namespace}")

    def pid(self) -> int:
        return SshdRecord.model_validate_json((self.folder / "ssh/record.json").read_bytes()).pid

    def wait_for_sessions(self, number: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(self.gateway.sessions.sessions) != number:
            assert time.monotonic() < deadline, self.gateway.sessions.sessions
            time.sleep(0.02)

    def close(self) -> None:
        self.gateway.ensure_no_sshd()
        os.close(self.namespace)


def connect_guest(network: str, addresses: Sequence[str], port: int) -> socket.socket:
    own, guest = socket.socketpair()

    def serve() -> None:
        with guest, suppress(ConnectionResetError, BrokenPipeError):
            guest.sendall(f"{network} {addresses[0]} {port}\n".encode())
            while data := guest.recv(65536):
                guest.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return own


@contextmanager
def opened(client: StockSsh, *options: str) -> Iterator[OpenSsh]:
    connection = client.open(*options)
    try:
        yield connection
    finally:
        connection.close()
