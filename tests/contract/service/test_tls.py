"""Tests of TLS, and of the AF_UNIX socket of a service that also listens with TLS."""

import json
import re
import signal
import socket
import ssl
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.migrated import create_sqlite
from support.programs.sbf_process import SbfProcess, find_address, run_sbf
from support.programs.tls import DAY, Authority

from sbf_service.bootstrap import build_service
from sbf_service.server import open_sockets
from sbf_service.settings import read_settings
from virtcloud.client.api import Client
from virtcloud.client.http_clients import TlsTrust, build_http_client
from virtcloud.model.errors import BadInput, ServiceUnreachable, Unauthenticated


@dataclass
class Installation:
    """A service with a certificate."""

    folder: Path
    port: int
    authority: Path
    process: SbfProcess
    token: str

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def read_certificate(self, server_name: str | None = None) -> str:
        """Return the certificate that SBF presents to a client with this server name (SNI)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port)) as line,
            context.wrap_socket(line, server_hostname=server_name) as opened,
        ):
            return ssl.DER_cert_to_PEM_cert(opened.getpeercert(binary_form=True) or b"")


@contextmanager
def running_service(folder: Path, **changes: str | dict[str, dict[str, str]]) -> Iterator[Installation]:
    authority = Authority("authority")
    certificate, key = authority.sign(folder, "sbf")
    settings: dict[str, str | dict[str, dict[str, str]]] = {
        "database": f"sqlite:///{folder}/sbf.db",
        "listen": "127.0.0.1:0",
        "socket": f"{folder}/sbf.sock",
    }
    settings |= {"tls_certificate": str(certificate), "tls_key": str(key)} | changes
    create_sqlite(f"sqlite:///{folder}/sbf.db")
    config = folder / "sbf.toml"
    config.write_text("".join(_toml(name, value) for name, value in settings.items()))
    created = run_sbf("token", "create", "eva", "--role", "operator", "--config", str(config))
    assert created.returncode == 0, created
    token = created.stdout.strip()
    with (folder / "log").open("w") as log, SbfProcess("serve", "--config", str(config), stderr=log) as process:
        try:
            wait_until(lambda: find_address((folder / "log").read_text()))
            port = int(find_address((folder / "log").read_text()).rpartition(":")[2])
            yield Installation(folder, port, authority.write(folder), process, token)
        finally:
            process.terminate()


def _toml(name: str, value: str | dict[str, dict[str, str]]) -> str:
    """Return a setting as TOML. A dictionary becomes tables, which must come last in the file."""
    if isinstance(value, str):
        return f"{name} = {json.dumps(value)}\n"
    tables = ((f"[{name}.{section}]\n", table) for section, table in value.items())
    return "".join(head + "".join(_toml(*pair) for pair in table.items()) for head, table in tables)


def wait_until(reached: object) -> None:
    ends = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="sbf") as folder, running_service(Path(folder)) as service:
        yield service


def test_a_client_that_trusts_the_authority_is_admitted(installation: Installation) -> None:
    with Client(installation.url, token=installation.token, ca_file=installation.authority) as client:
        assert client.sbf.whoami().name == "eva"
    with Client(installation.url, ca_file=installation.authority, token="vc_none") as client:  # noqa: SIM117, S106
        with pytest.raises(Unauthenticated):
            client.sbf.whoami()


def test_a_client_without_trust_sends_no_token(installation: Installation) -> None:
    with Client(installation.url, token=installation.token) as client, pytest.raises(ServiceUnreachable) as raised:
        client.sbf.whoami()
    assert str(raised.value).startswith(f"the certificate of SBF at {installation.url} is not trusted: ")
    assert "--ca-file or VIRTCLOUD_CA_FILE; for an agent, set ca_file in" in str(raised.value)


def test_plain_http_gets_an_error_that_names_tls(installation: Installation) -> None:
    plain = installation.url.replace("https", "http")
    with Client(plain, token=installation.token) as client, pytest.raises(ServiceUnreachable) as raised:
        client.sbf.whoami()
    assert str(raised.value) == (
        f"the server at {plain} closed the connection without an answer: the service stopped during the "
        f"call, or the server expects TLS (--url {installation.url} or VIRTCLOUD_URL)"
    )


def handshake(port: int, version: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", port)) as line, context.wrap_socket(line) as opened:
        return opened.version()


def test_tls_before_1_2_is_refused(installation: Installation) -> None:
    assert handshake(installation.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        handshake(installation.port, ssl.TLSVersion.TLSv1_1)


def test_root_on_the_socket_needs_no_certificate_or_token(installation: Installation) -> None:
    with Client(f"unix://{installation.folder}/sbf.sock") as client:
        assert client.sbf.whoami().role == "operator"


def test_sighup_reloads_a_valid_certificate_only(installation: Installation) -> None:
    before, log = installation.read_certificate(), installation.folder / "log"
    (installation.folder / "sbf.crt").write_text("rubbish")
    installation.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "certificate_not_reloaded" in log.read_text())
    assert installation.read_certificate() == before
    Authority("another").sign(installation.folder, "sbf")
    installation.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "certificate_reloaded" in log.read_text())
    assert installation.read_certificate() != before


def test_sighup_replaces_a_certificate_with_another_type_of_key(tmp_path: Path) -> None:
    """A client that accepts RSA and EC keys prefers the certificate with the EC key."""
    with running_service(tmp_path) as service:
        log = tmp_path / "log"
        rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        new = Authority("another").sign(tmp_path, "sbf", key=rsa_key)[0].read_text()
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate_reloaded" in log.read_text())
        assert [service.read_certificate(name) for name in (None, "localhost")] == [new, new]
        (tmp_path / "sbf.crt").write_text("rubbish")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate_not_reloaded" in log.read_text())
        assert service.read_certificate() == new


def test_an_unusable_credential_is_logged_at_start_and_sighup(tmp_path: Path) -> None:
    """The service continues, because devices with other credentials work."""
    credential = {"username": "x", "key_file": f"{tmp_path}/absent"}
    with running_service(tmp_path, credentials={"site": credential}) as service:
        log = tmp_path / "log"
        wait_until(lambda: log.read_text().count("credential_unusable") == 1)
        assert f"key_file {tmp_path}/absent cannot be read" in log.read_text()
        with Client(service.url, token=service.token, ca_file=service.authority) as client:
            assert client.sbf.whoami().name == "eva"
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_text().count("credential_unusable") == 2)


def test_a_readable_key_and_an_expired_certificate_are_logged(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sbf") as name:
        folder = Path(name)
        folder.chmod(0o755)  # unlike pytest's temporary folders, every user can enter the folder
        certificate, key = Authority("authority").sign(folder, "old", -3 * DAY, -DAY)
        key.chmod(0o644)
        with running_service(tmp_path, tls_certificate=str(certificate), tls_key=str(key)) as service:
            log = tmp_path / "log"
            wait_until(lambda: log.read_text().count("certificate_not_valid") == 1)
            assert f"secret_file_readable file={key} key=tls_key mode=0644" in log.read_text()
            service.process.send_signal(signal.SIGHUP)
            wait_until(lambda: log.read_text().count("certificate_not_valid") == 2)
            assert log.read_text().count("secret_file_readable") == 2


def test_client_certificates_are_required_if_configured(tmp_path: Path) -> None:
    clients = Authority("clients")
    certificate, key = clients.sign(tmp_path, "host")
    certificate_and_key = tmp_path / "both.pem"
    certificate_and_key.write_bytes(certificate.read_bytes() + key.read_bytes())
    with running_service(tmp_path, tls_client_ca=str(clients.write(tmp_path))) as service:
        with Client(
            service.url, token=service.token, ca_file=service.authority, certificate=certificate_and_key
        ) as client:
            assert client.sbf.whoami().name == "eva"
        with (
            Client(service.url, token=service.token, ca_file=service.authority) as client,
            pytest.raises(ServiceUnreachable),
        ):
            client.sbf.whoami()


def test_sighup_reloads_the_authority_of_client_certificates(tmp_path: Path) -> None:
    former, new = (write_client(tmp_path, Authority(name)) for name in ("former", "new"))
    authority = Authority("clients").write(tmp_path)
    authority.write_bytes((tmp_path / "former.pem").read_bytes())
    with running_service(tmp_path, tls_client_ca=str(authority)) as service:
        before = [is_admitted(service, client) for client in (former, new, None)]
        authority.write_bytes((tmp_path / "new.pem").read_bytes())
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "certificate_reloaded" in (tmp_path / "log").read_text())
        after = [is_admitted(service, client) for client in (former, new, None)]
    assert (before, after) == ([True, False, False], [False, True, False])


def write_client(folder: Path, authority: Authority) -> Path:
    """Write an authority's certificate, and a file with a client's certificate and key. Return the latter file."""
    authority.write(folder)
    certificate, key = authority.sign(folder, f"client of {authority.name}")
    certificate_and_key = folder / f"client of {authority.name}.pem"
    certificate_and_key.write_bytes(certificate.read_bytes() + key.read_bytes())
    return certificate_and_key


def is_admitted(service: Installation, certificate: Path | None) -> bool:
    with Client(service.url, token=service.token, ca_file=service.authority, certificate=certificate) as client:
        try:
            return client.sbf.whoami().name == "eva"
        except ServiceUnreachable:
            return False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "192.0.2.1:8800"}, "listen = '192.0.2.1:8800': tokens would cross a network unencrypted; set tls_"),
        ({"listen": "[::]:8800"}, "listen = '[::]:8800': tokens would cross a network unencrypted"),
        ({"tls_key": "/none"}, "expected both tls_certificate and tls_key, or neither; got only one"),
        ({"tls_client_ca": "/none"}, "tls_client_ca: expected tls_certificate and tls_key too, got neither"),
        (
            {"tls_key": "/none", "tls_certificate": "/none"},
            "tls_certificate = '/none', tls_key = '/none': expected a certificate and its key (PEM, ",
        ),
    ],
)
def test_unsafe_tls_settings_are_refused_at_the_start(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    settings = {"database": f"sqlite:///{tmp_path}/sbf.db", "listen": "127.0.0.1:0"} | changes
    config = tmp_path / "sbf.toml"
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    with pytest.raises(BadInput, match=re.escape(message)):
        open_sockets(build_service(read_settings(config)))


@pytest.mark.parametrize("trust", [TlsTrust(ca_file="/none"), TlsTrust(certificate="/none")])
def test_a_missing_certificate_file_is_described_without_an_error_number(trust: TlsTrust) -> None:
    with pytest.raises(BadInput, match=r"file /none: expected .*: No such file or directory$"):
        build_http_client("https://127.0.0.1:1", trust)


def test_an_invalid_certificate_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(BadInput, match="expected certificates"):
        Client("https://127.0.0.1:1", ca_file=tmp_path / "x")
