"""Logins to guests through a gateway: the key and certificate of a user, and the configuration of ssh.

The gateway's sshd connects ssh with the sshd of a guest. The login to the gateway uses a new private key and a
certificate of SBF that is valid for some minutes. The login to the guest uses the user's own key.
"""

import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from pydantic import SecretStr

from virtcloud.client.credentials import find_user_folder, replace_private_file
from virtcloud.client.process_folders import name_process_folder, remove_folders_of_ended_processes
from virtcloud.client.sbf import SbfClient
from virtcloud.client.ssh_failures import SSH_FAILED
from virtcloud.client.waiting import call_until_answered
from virtcloud.model.errors import BadInput, NoSuchCall, NotFound, ServiceUnreachable
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.ssh_access import (
    ACCOUNT,
    SshAccessView,
    SshCertificateRequest,
    SshCertificateView,
    SshGatewayView,
)
from virtcloud.model.ssh_keys import UserKey

RENEWAL_S: Final = 60.0
"""A login gets a new certificate if the present certificate ends within this number of seconds.

A certificate with a short validity is renewed later (:func:`compute_renewal`).
"""
RENEWAL_PAUSE_S: Final = 10.0
"""Shortest time in seconds between two requests for a certificate."""
CONNECT_S: Final = 10
"""Seconds for which ssh waits for a gateway. After this time, the proxy command tries the next gateway."""
PROBE_S: Final = 2.0
"""Seconds for which :func:`is_reachable` waits for the connection."""
BANNER_S: Final = 4.0
"""Seconds for which :func:`is_reachable` waits for the beginning of the server's first line."""
BANNER: Final = b"SSH-"
WAIT_S: Final = 60.0
"""Maximum time in seconds to wait until a cluster's elements have confirmed the cluster's connection to a gateway."""
POLL_S: Final = 0.3
ALIVE_S: Final = 60
CACHE_VARIABLE: Final = "XDG_CACHE_HOME"
KEY, CERTIFICATE, KNOWN_HOSTS, CONFIG = "key", "key-cert.pub", "known_hosts", "config"


@dataclass(frozen=True, slots=True)
class LoginKey:
    """A new key pair. ``private`` is the private key's text in OpenSSH's format."""

    private: SecretStr
    public: UserKey


def make_login_key() -> LoginKey:
    """Create an Ed25519 key pair."""
    # Only logins through gateways need cryptography, whose import takes 0.02 s.
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()).decode()
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()
    return LoginKey(SecretStr(private), UserKey(public))


def request_login_files(
    sbf: SbfClient,
    key: str,
    folder: Path,
    cluster_id: str | None = None,
    show: Callable[[SshAccessView], object] = lambda _view: None,
) -> SshCertificateView:
    """Create ``folder``, request a certificate, and write the files of a login to ``folder``. Return the certificate.

    If this request connects the cluster to a gateway, wait at most ``WAIT_S`` seconds until the elements on the path
    have confirmed the connection. Meanwhile, call ``show`` with the present state. Raise ServiceUnreachable if SBF does
    not answer for ``PATIENCE_S`` seconds during this wait; the files remain. Raise the errors of
    `SbfClient.create_ssh_certificate`, after the removal of a folder that this function created. Raise BadInput if
    ``folder`` cannot be written.
    """
    login = make_login_key()
    with _create_login_folder(folder):
        certificate = sbf.create_ssh_certificate(key, SshCertificateRequest(public_key=login.public), cluster_id)
    replace_private_file(folder / KEY, login.private.get_secret_value())
    replace_private_file(folder / CERTIFICATE, f"{certificate.certificate}\n")
    replace_private_file(folder / KNOWN_HOSTS, render_login_hosts(certificate))
    replace_private_file(folder / CONFIG, render_login_config(certificate, folder.absolute()))
    _wait_for_elements(sbf, certificate, show)
    return certificate


def create_folder(folder: Path, remedy: str) -> bool:
    """Create a private folder, unless the folder exists. Return whether the folder is new.

    Raise BadInput, with the remedy, if no file can be created in the folder.
    """
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadInput(f"folder {folder}: cannot be written: {error.strerror}; {remedy}") from error
    return is_new


@contextmanager
def _create_login_folder(folder: Path) -> Iterator[None]:
    is_new = create_folder(folder, "choose another folder")
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _wait_for_elements(sbf: SbfClient, view: SshAccessView, show: Callable[[SshAccessView], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while view.pending and time.monotonic() < deadline:
        show(view)
        time.sleep(POLL_S)
        view = _read_access(sbf, view)


def _read_access(sbf: SbfClient, view: SshAccessView) -> SshAccessView:
    try:
        return call_until_answered(partial(sbf.ssh_access, view.cluster, view.cluster_id))
    except ServiceUnreachable as error:
        names = ", ".join(element.element for element in view.pending)
        raise ServiceUnreachable(
            f"the certificate for the gateways of cluster {view.cluster} is valid, but {names} had not confirmed the "
            f"connection to the gateways when SBF became unreachable; try again when SBF answers ({error})"
        ) from error


def find_reachable_access(sbf: SbfClient, key: str, cluster_id: str) -> bool:
    """Return whether the caller can reach the cluster's guests through a gateway from this computer.

    Return False if SBF does not know the cluster, or is too old for such access.
    """
    try:
        access = sbf.ssh_access(key, cluster_id)
    except (NotFound, NoSuchCall):
        return False
    return not access.pending and any(is_reachable(gateway) for gateway in access.gateways)


def is_reachable(gateway: SshGatewayView) -> bool:
    """Return whether an sshd answers this computer at the gateway's address (RFC 4253, 4.2).

    An open connection is not sufficient: proxies and firewalls of some networks accept every connection.
    """
    with suppress(OSError), socket.create_connection((gateway.address, gateway.port), PROBE_S) as connection:
        connection.settimeout(BANNER_S)
        return connection.recv(len(BANNER), socket.MSG_WAITALL) == BANNER
    return False


def render_login_hosts(certificate: SshCertificateView) -> str:
    """Return the host keys of the gateways and the guests in the format of known_hosts (sshd(8)). Pure."""
    gateways = "".join(f"{_alias(gateway)} {gateway.host_key}\n" for gateway in certificate.gateways)
    return gateways + render_known_hosts(certificate.peers)


def render_login_config(certificate: SshCertificateView, folder: Path) -> str:
    """Return the configuration of ssh for the guests of a cluster (ssh_config(5)). Pure."""
    guests = list(dict.fromkeys(peer.name for peer in certificate.peers))
    gateways = "".join(_render_gateway(gateway, folder) for gateway in certificate.gateways)
    if not guests:
        return gateways
    user = [f"User {certificate.guest_user}"] if certificate.guest_user else []
    proxy = shlex.join(make_proxy_arguments(certificate.gateways, folder, "%h"))
    lines = (
        *user,
        f"ProxyCommand {proxy}",
        f"ServerAliveInterval {ALIVE_S}",
        *_list_host_options(folder),
    )
    return gateways + _render_host(" ".join(guests), lines)


def make_proxy_arguments(gateways: Sequence[SshGatewayView], folder: Path, guest: str) -> list[str]:
    """Return a command that connects its standard input and output with the sshd of a guest. Pure.

    The command ignores appended arguments. If a gateway does not answer, the command tries the next gateway.
    """
    config = shlex.quote(str(folder / CONFIG))
    first, *others = (f"ssh -F {config} {_alias(gateway)} {guest}" for gateway in gateways)
    script = "".join([first, *(f" || test $? -ne {SSH_FAILED} || {other}" for other in others)])
    return ["sh", "-c", script]


def _render_gateway(gateway: SshGatewayView, folder: Path) -> str:
    lines = (
        f"HostName {gateway.address}",
        f"Port {gateway.port}",
        f"User {ACCOUNT}",
        f"HostKeyAlias {_alias(gateway)}",
        f'IdentityFile "{folder / KEY}"',
        f'CertificateFile "{folder / CERTIFICATE}"',
        "IdentitiesOnly yes",
        "IdentityAgent none",
        "BatchMode yes",
        f"ConnectTimeout {CONNECT_S}",
        f"ServerAliveInterval {ALIVE_S}",
        "ProxyCommand none",
        "RequestTTY no",
        "LogLevel ERROR",
        *_list_host_options(folder),
    )
    return _render_host(_alias(gateway), lines)


def _list_host_options(folder: Path) -> tuple[str, ...]:
    known = f'UserKnownHostsFile "{folder / KNOWN_HOSTS}"'
    return known, "GlobalKnownHostsFile none", "StrictHostKeyChecking yes", "ControlPath none"


def _render_host(names: str, lines: Sequence[str]) -> str:
    return "\n".join((f"Host {names}", *(f"  {line}" for line in lines), ""))


def _alias(gateway: SshGatewayView) -> str:
    """Return a name with a dot, which distinguishes the gateway from guests."""
    return f"{gateway.name}.gateway"


def make_login_folder(parent: Path) -> Path:
    """Return the path of a new folder for the files of a login. Remove the folders of logins that have ended.

    ssh replaces this program (execve), so a later login removes this login's folder.
    """
    remove_folders_of_ended_processes(parent, "gateway-")
    return parent / name_process_folder("gateway-")


def check_login_folder(folder: Path) -> None:
    """Raise BadInput if a path has characters that cannot be written in a configuration of ssh."""
    if any(character in str(folder.absolute()) for character in "\"'\n%"):
        raise BadInput(f"{folder}: expected a folder without quotation marks and '%' in its path")


def find_login_folder() -> Path:
    """Return the folder, in the user's cache, for login files that are used after the end of this program."""
    return find_user_folder(CACHE_VARIABLE, ".cache")


def compute_renewal(now: datetime, expires_at: datetime) -> datetime:
    """Return when to renew a certificate that was received at ``now``: ``RENEWAL_S`` seconds before its end. Pure.

    A certificate with a short validity is renewed after half of its validity. The time of renewal is at least
    ``RENEWAL_PAUSE_S`` seconds after ``now``, even if this computer's clock is fast.
    """
    renewal = expires_at - min(timedelta(seconds=RENEWAL_S), (expires_at - now) / 2)
    return max(renewal, now + timedelta(seconds=RENEWAL_PAUSE_S))  # the clocks of this computer and of SBF may differ
