"""OpenVPN profiles: the key of a device, and the file for an OpenVPN client (openvpn(8), version 2.5 or later).

The private key is made on the user's computer. SBF receives only a certificate signing request.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pydantic import SecretStr

from virtcloud.model.values import format_utc
from virtcloud.model.vpn import NewVpnProfile, VpnProtocol, VpnRemote

OPTIONS: Final = (
    "client",
    "dev tap",
    "nobind",
    "auth-nocache",
    "resolv-retry infinite",
    "connect-retry 1 10",
    "server-poll-timeout 10",
    "remote-cert-tls server",
    "tls-version-min 1.2",
    "data-ciphers AES-256-GCM:CHACHA20-POLY1305:AES-128-GCM",
    "allow-compression no",
)
REFUSED_OPTIONS: Final = ("route", "redirect-", "dhcp-option", "dns", "block-outside-dns", "setenv", "register-dns")
"""Prefixes of options that a client ignores if a gateway sends them. Therefore a gateway cannot change the computer's
routes and DNS."""
SERVER_MTU: Final = "tun-mtu 1500"
"""An option that OpenVPN 2.6 sends to each client. If the network has a smaller MTU, the gateway sends the smaller MTU
before this option. Profiles make clients ignore this option, because the option would replace the smaller MTU."""


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """The private key of a device, and the request for its certificate, both in PEM form."""

    private: SecretStr
    csr: str


def make_device_key() -> DeviceKey:
    """Create a private key (P-256) and a certificate signing request. SBF chooses the subject of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return DeviceKey(SecretStr(private), request.public_bytes(Encoding.PEM).decode())


def render_profile(profile: NewVpnProfile, private_key: SecretStr) -> str:
    """Return the content of the file for an OpenVPN client. Pure."""
    return "\n".join(_list_lines(profile, private_key)) + "\n"


def _list_lines(profile: NewVpnProfile, private_key: SecretStr) -> Iterator[str]:
    yield f"# virtcloud: cluster {profile.cluster}, device {profile.device} of {profile.user}"
    yield f"# valid until {format_utc(profile.expires_at)}, unless it is revoked before; keep this file secret"
    yield from OPTIONS
    yield from (f'pull-filter ignore "{prefix}"' for prefix in (*REFUSED_OPTIONS, SERVER_MTU))
    for remote in profile.remotes:
        yield from _list_connection_lines(remote)
    yield from _embed("ca", profile.authority)
    yield from _embed("cert", profile.certificate)
    yield from _embed("key", private_key.get_secret_value())


def _list_connection_lines(remote: VpnRemote) -> Iterator[str]:
    yield "<connection>"
    yield f"remote {remote.address} {remote.port} {_name_protocol(remote)}"
    if remote.protocol is VpnProtocol.UDP:
        yield "explicit-exit-notify 2"
    yield from _embed("tls-crypt-v2", remote.tls_crypt_key)
    yield "</connection>"


def _name_protocol(remote: VpnRemote) -> str:
    return "tcp-client" if remote.protocol is VpnProtocol.TCP else "udp"


def _embed(name: str, text: str) -> Iterator[str]:
    yield f"<{name}>"
    yield text.strip()
    yield f"</{name}>"
