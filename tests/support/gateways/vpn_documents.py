"""A certificate authority for tests of VPN access, and the devices, grants and profiles of this authority."""

import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import SecretStr

from virtcloud.client.vpn_profile import render_profile
from virtcloud.model.vpn import NewVpnProfile, VpnGrant, VpnProtocol, VpnServer

PORTS = {VpnProtocol.UDP: 1194, VpnProtocol.TCP: 443}


def make_server(**changes: object) -> VpnServer:
    keys = {"ports": PORTS, "authority": "a", "certificate": "c", "private_key": "k", "tls_crypt_key": "t"}
    return VpnServer.model_validate(keys | changes)


@dataclass(frozen=True, slots=True)
class VpnDevice:
    """A device with a key and a certificate."""

    name: str
    certificate: str
    key: str
    fingerprint: str
    tls_crypt_key: str

    def grant(self, *addresses: str, ends_in: timedelta = timedelta(hours=1)) -> VpnGrant:
        return VpnGrant.model_validate(
            {
                "profile": self.name,
                "cluster": "c100",
                "user": "alice",
                "device": self.name,
                "fingerprint": self.fingerprint,
                "addresses": addresses,
                "expires_at": datetime.now(UTC) + ends_in,
            }
        )


class VpnAuthority:
    """A certificate authority, and the keys and certificate of one gateway's OpenVPN servers."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("authority", self._key, None)
        self._crypt_key = _run_genkey("tls-crypt-v2-server")
        key = ec.generate_private_key(ec.SECP256R1())
        self.server = VpnServer.model_validate(
            {
                "ports": PORTS,
                "authority": _pem(self._certificate),
                "certificate": _pem(self._sign("brno-gw", key, ExtendedKeyUsageOID.SERVER_AUTH)),
                "private_key": _key_pem(key),
                "tls_crypt_key": self._crypt_key,
            }
        )

    def make_device(self, name: str, valid: timedelta = timedelta(days=1)) -> VpnDevice:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key, ExtendedKeyUsageOID.CLIENT_AUTH, valid)
        fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
        crypt_key = _run_genkey("tls-crypt-v2-client", self._crypt_key)
        return VpnDevice(name, _pem(certificate), _key_pem(key), fingerprint, crypt_key)

    def render_profile(self, device: VpnDevice, address: str, protocol: VpnProtocol) -> str:
        remote = {
            "gateway": "brno-gw",
            "address": address,
            "port": PORTS[protocol],
            "protocol": protocol,
            "tls_crypt_key": device.tls_crypt_key,
        }
        now = datetime.now(UTC)
        profile = {
            "id": device.name,
            "cluster": "demo",
            "user": "alice",
            "device": device.name,
            "fingerprint": device.fingerprint,
            "gateways": ("brno-gw",),
            "created_at": now,
            "created_by": "alice",
            "expires_at": now,
            "lease_ends": now,
            "authority": self.server.authority,
            "certificate": device.certificate,
            "remotes": (remote,),
        }
        return render_profile(NewVpnProfile.model_validate(profile), SecretStr(device.key))

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        usage: x509.ObjectIdentifier | None,
        valid: timedelta = timedelta(days=1),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(_subject("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + valid)
            .add_extension(x509.BasicConstraints(ca=usage is None, path_length=None), critical=True)
        )
        if usage is not None:
            flags = dict.fromkeys(_OTHER_USAGES, False)
            builder = builder.add_extension(x509.KeyUsage(digital_signature=True, **flags), critical=True)
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


_OTHER_USAGES = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    formats = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *formats).decode()


def _run_genkey(kind: str, server_key: str | None = None) -> str:
    with TemporaryDirectory() as temporary:
        server, output = Path(temporary) / "server.key", Path(temporary) / "new.key"
        server.write_text(server_key or "")
        options = ("--tls-crypt-v2", str(server)) if server_key else ()
        command = (shutil.which("openvpn") or "openvpn", *options, "--genkey", kind, str(output))
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - OpenVPN
        return output.read_text()
