"""SSH access through gateways: the authority, the keys of gateways, and the certificates of users. Pure.

The keys are derived from the secret of the certificate authority for VPN access, so a renewal of this authority also
replaces the SSH keys. Source of the certificates' format: OpenSSH's PROTOCOL.certkeys.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)
from pydantic import SecretBytes

from sbf_service.domain.ssh_key_pairs import derive_authority_key, derive_gateway_key
from sbf_service.domain.vpn_authority import CLOCK_SKEW
from virtcloud.model.errors import BadInput
from virtcloud.model.ssh_access import ACCOUNT, SshGatewayView, SshListener, SshServer
from virtcloud.model.ssh_keys import UserKey
from virtcloud.model.values import Name, UserName

FORCED_COMMAND: Final = b"virtcloud"
"""The forced command of certificates, which the account's shell at a gateway ignores.

Any other machine that trusts the authority permits only this command without arguments.
"""

SshPublicKey = EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class SshCertificate:
    """The content of a certificate.

    The SSH principals are :data:`ACCOUNT` and the cluster's ID. The key ID names the user and the serial number.
    """

    cluster: str
    user: UserName
    serial: int
    begins: datetime
    ends: datetime


def make_ssh_server(secret: SecretBytes, gateway: Name, listener: SshListener) -> SshServer:
    """Return the port, the authority's public key and the host key with which a gateway runs sshd."""
    authority = derive_authority_key(secret).public
    return SshServer(port=listener.port, authority=authority, host_key=derive_gateway_key(secret, gateway).private)


def make_gateway_view(secret: SecretBytes, gateway: Name, listener: SshListener) -> SshGatewayView:
    """Return the address, port and public host key with which users reach a gateway's sshd."""
    host_key = derive_gateway_key(secret, gateway).public
    return SshGatewayView(name=gateway, address=listener.address, port=listener.port, host_key=host_key)


def parse_certified_key(key: UserKey) -> SshPublicKey:
    """Parse a user's public key. Raise BadInput for a key of a type that SBF does not certify."""
    try:
        found = None if key.kind.startswith("sk-") else load_ssh_public_key(key.encode())
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, SshPublicKey):
        raise BadInput(f"expected a key of type Ed25519, ECDSA or RSA, got {key.kind}", ("public_key",))
    return found


def sign_certificate(secret: SecretBytes, key: SshPublicKey, certificate: SshCertificate) -> str:
    """Return a certificate as one line of a file ``*-cert.pub``. The certificate permits neither forwarding nor a PTY.

    The certificate becomes valid ``CLOCK_SKEW`` before ``begins``, because a gateway's clock can be slow. A
    certificate's times are whole seconds, so the certificate ends at ``ends`` or less than a second earlier.
    """
    authority = load_ssh_private_key(derive_authority_key(secret).private.get_secret_value().encode(), None)
    if not isinstance(authority, Ed25519PrivateKey):
        raise TypeError("expected an Ed25519 key of the authority")
    builder = (
        SSHCertificateBuilder()
        .public_key(key)
        .type(SSHCertificateType.USER)
        .serial(certificate.serial)
        .key_id(f"{certificate.user}/{certificate.serial}".encode())
        .valid_principals([ACCOUNT.encode(), certificate.cluster.encode()])
        .valid_after(int((certificate.begins - CLOCK_SKEW).timestamp()))
        .valid_before(int(certificate.ends.timestamp()))
        .add_critical_option(b"force-command", FORCED_COMMAND)
    )
    return builder.sign(authority).public_bytes().decode()
