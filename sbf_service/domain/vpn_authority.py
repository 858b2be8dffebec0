"""The certificate authority for VPN access, derived from a secret of the service. Pure.

The same secret always yields the same keys and certificates of the authority and of gateways (HKDF, RFC 5869;
deterministic ECDSA, RFC 6979). Therefore, no private key is stored, and all replicas send the same documents to
gateways. A device's private key never leaves the device.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import SecretBytes, SecretStr

from sbf_service.domain.key_derivation import derive_bytes
from sbf_service.domain.tls_crypt_keys import make_server_key
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name
from virtcloud.model.vpn import Fingerprint, VpnListener, VpnServer

AUTHORITY_NAME: Final = "virtcloud VPN authority"
VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
NEVER_EXPIRES: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The end of a certificate without an expiry date (RFC 5280, 4.1.2.5)."""
CLOCK_SKEW: Final = timedelta(minutes=10)
"""A device's certificate becomes valid this long before its creation, because the clock of a gateway can be slow."""
P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SEED_BYTES: Final = 48
"""The length of a seed for a private key.

16 bytes more than the key prevent a measurable bias of the reduction modulo the order (FIPS 186-5, A.2).
"""
SERIAL_BYTES: Final = 16
RSA_BITS: Final = range(2048, 8193)
MAX_CACHED: Final = 1024

DeviceKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class DeviceCertificate:
    """The certificate of a device in PEM form, with its fingerprint."""

    text: str
    fingerprint: Fingerprint


def parse_device_key(csr: str) -> DeviceKey:
    """Return the public key of a certificate signing request. Raise BadInput for an unusable request or key.

    The signature proves that the sender has the private key.
    """
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key, is_valid = request.public_key(), request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise BadInput(f"expected a certificate signing request in PEM form, got: {error}", ("csr",)) from error
    if not is_valid:
        raise BadInput("expected a certificate signing request with the signature of its own key", ("csr",))
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in RSA_BITS:
        return key
    raise BadInput("expected a key of type P-256, P-384 or RSA with 2048 to 8192 bits, got another key", ("csr",))


@lru_cache(maxsize=MAX_CACHED)
def make_authority_certificate(secret: SecretBytes) -> str:
    """Return the certificate of the authority in PEM form."""
    key = _derive_authority_key(secret)
    builder = _start_certificate(AUTHORITY_NAME, key.public_key(), VALID_FROM, NEVER_EXPIRES)
    builder = builder.serial_number(_derive_serial(secret, AUTHORITY_NAME))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _sign(builder, key)


@lru_cache(maxsize=MAX_CACHED)
def make_vpn_server(secret: SecretBytes, gateway: Name, listener: VpnListener) -> VpnServer:
    """Return the ports, certificates and keys with which a gateway runs its OpenVPN servers."""
    key = _derive_key(secret, "gateway", gateway)
    builder = _start_certificate(gateway, key.public_key(), VALID_FROM, NEVER_EXPIRES)
    builder = builder.serial_number(_derive_serial(secret, "gateway", gateway))
    builder = _add_leaf_extensions(builder, secret, key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return VpnServer(
        ports=listener.ports,
        authority=make_authority_certificate(secret),
        certificate=_sign(builder, _derive_authority_key(secret)),
        private_key=SecretStr(text),
        tls_crypt_key=make_server_key(secret, gateway),
    )


def make_device_certificate(
    secret: SecretBytes, profile: str, key: DeviceKey, now: datetime, ends: datetime
) -> DeviceCertificate:
    """Return a device's certificate.

    The subject is the profile's ID, so a profile has one connection at a time.

    The certificate ends up to a second before ``ends``, because its times are whole seconds.
    """
    builder = _start_certificate(profile, key, now - CLOCK_SKEW, ends)
    builder = builder.serial_number(_derive_serial(secret, "device", profile))
    builder = _add_leaf_extensions(builder, secret, key, ExtendedKeyUsageOID.CLIENT_AUTH)
    text = _sign(builder, _derive_authority_key(secret))
    der = x509.load_pem_x509_certificate(text.encode()).public_bytes(Encoding.DER)
    return DeviceCertificate(text, Fingerprint(hashlib.sha256(der).hexdigest()))


def _start_certificate(subject: str, key: DeviceKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(AUTHORITY_NAME))
    return builder.public_key(key).not_valid_before(begins).not_valid_after(ends)


def _add_leaf_extensions(
    builder: x509.CertificateBuilder, secret: SecretBytes, key: DeviceKey, purpose: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    """Add the extensions that ``remote-cert-tls`` of OpenVPN checks.

    Without these extensions, a gateway could use its certificate as a client, and a device as a server.
    """
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(_derive_authority_key(secret).public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(issuer, critical=False)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    return builder.sign(key, SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.PEM).decode()


@lru_cache(maxsize=MAX_CACHED)
def _derive_authority_key(secret: SecretBytes) -> ec.EllipticCurvePrivateKey:
    return _derive_key(secret, "authority")


def _derive_key(secret: SecretBytes, *purpose: str) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(derive_bytes(secret, SEED_BYTES, "VPN key", *purpose))
    return ec.derive_private_key(number % (P256_ORDER - 1) + 1, ec.SECP256R1())


def _derive_serial(secret: SecretBytes, *purpose: str) -> int:
    """Return a positive serial number (RFC 5280, 4.1.2.2)."""
    return int.from_bytes(derive_bytes(secret, SERIAL_BYTES, "VPN serial number", *purpose)) >> 1 | 1
