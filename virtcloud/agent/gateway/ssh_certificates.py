"""Verification of the SSH certificate that proves a user's identity to a gateway. Pure.

sshd verifies that the user has the certificate's private key. The agent verifies the certificate again: an attacker who
controls sshd's process could send a forged certificate.

The agent imports this module only when the first user connects, because the library ``cryptography`` needs 9 MB of
memory.
"""

from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
    load_ssh_public_key,
)

from virtcloud.agent.gateway.ssh_admission import ProvenUser
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.guest_seed import PublicKey
from virtcloud.model.ssh_access import ACCOUNT
from virtcloud.model.values import UserName

METHOD: Final = "publickey "
"""The beginning of sshd's line about the certificate (ExposeAuthInfo, sshd_config(5))."""
PRINCIPALS: Final = 2


def verify_certificate(proof: str, authority: PublicKey, now: datetime) -> ProvenUser:
    """Return the claims of the certificate in ``proof``, which is sshd's line about the certificate.

    Raise Forbidden in these cases:

    * ``proof`` is no line about a user's certificate.
    * The certificate is not valid at the time ``now``.
    * A key other than ``authority`` signed the certificate.
    * A claim is missing or has another form.
    """
    certificate = _parse_certificate(proof)
    try:
        certificate.verify_cert_signature()
    except InvalidSignature:
        raise Forbidden("the certificate has a wrong signature") from None
    signer, trusted = certificate.signature_key(), load_ssh_public_key(authority.encode())
    if not isinstance(signer, Ed25519PublicKey) or signer != trusted:
        raise Forbidden("the certificate is not signed by SBF's SSH authority")
    if not certificate.valid_after <= now.timestamp() < certificate.valid_before:
        raise Forbidden("the certificate has expired: request a new one")
    return _read_claims(certificate)


def _parse_certificate(proof: str) -> SSHCertificate:
    lines = proof.splitlines()
    try:
        found = load_ssh_public_identity(lines[0].removeprefix(METHOD).encode()) if len(lines) == 1 else None
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, SSHCertificate) or found.type is not SSHCertificateType.USER:
        raise Forbidden("expected one certificate of a user")
    return found


def _read_claims(certificate: SSHCertificate) -> ProvenUser:
    """Return the claims of a certificate with two principals in any order.

    The principals are `ACCOUNT`, with which all users log in to the gateway's sshd, and the ID of the cluster.
    """
    principals = {name.decode(errors="replace") for name in certificate.valid_principals}
    user, _, serial = certificate.key_id.decode(errors="replace").rpartition("/")
    if ACCOUNT not in principals or len(principals) != PRINCIPALS or serial != str(certificate.serial):
        raise Forbidden("expected a certificate that names one cluster and one user")
    (cluster,) = principals - {ACCOUNT}
    try:
        return ProvenUser(cluster, UserName(user), certificate.serial)
    except BadInput as error:
        raise Forbidden(f"the certificate names no user: {error}") from error
