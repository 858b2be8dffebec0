"""A certification authority for tests, and the certificates that it signs."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass
class Authority:
    """A certification authority."""

    name: str
    key: PrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def subject(self) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])

    def write(self, folder: Path) -> Path:
        basic = x509.BasicConstraints(ca=True, path_length=None)
        built = _builder(self.subject, self.subject, self.key).add_extension(basic, critical=True)
        path = folder / f"{self.name}.pem"
        path.write_bytes(built.sign(self.key, SHA256()).public_bytes(Encoding.PEM))
        return path

    def sign(
        self, folder: Path, name: str, begins: timedelta = -DAY, ends: timedelta = DAY, key: PrivateKey | None = None
    ) -> tuple[Path, Path]:
        """Write a certificate and its key. ``begins`` and ``ends`` of the validity are relative to the present time.

        If ``key`` is None, create an EC key.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        built = _builder(subject, self.subject, key, begins, ends).add_extension(names, critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = built.add_extension(identifier, critical=False)
        certificate, private = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(built.sign(self.key, SHA256()).public_bytes(Encoding.PEM))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
