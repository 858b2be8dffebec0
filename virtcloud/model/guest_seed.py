"""Seeds and peers of guests, and the data for SSH logins to guests.

A *seed* is the data that a guest reads at its first boot. The *peers* of a guest are the guests of its network.

SBF computes the seed. The host's agent renders the seed for the guest's kind: as NoCloud data for cloud-init, or as
files in a container's root file system. Source of the format of ``known_hosts``: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from collections.abc import Iterable
from ipaddress import ip_interface
from typing import Annotated, Final

from pydantic import PlainSerializer, SecretStr, SerializationInfo, WithJsonSchema

from virtcloud.model.document import Document
from virtcloud.model.values import Address, ClusterKey, LoginName, Name, PatternText, UserName

WITH_SECRETS: Final = {"secrets": True}
"""The pydantic context for documents that are sent to agents. Without this context, secrets become asterisks."""


def _serialize_secret(secret: SecretStr, info: SerializationInfo) -> str:
    return secret.get_secret_value() if info.context == WITH_SECRETS else str(secret)


Secret = Annotated[
    SecretStr,
    PlainSerializer(_serialize_secret, return_type=str),
    WithJsonSchema({"type": "string", "format": "password"}),  # pydantic's own schema is writeOnly: wrong for answers
]


class PublicKey(PatternText):
    """A public SSH key in OpenSSH's format: type, base64 data and an optional comment (authorized_keys, sshd(8))."""

    __slots__ = ()
    pattern = (
        r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
        r" [A-Za-z0-9+/]{16,16384}={0,2}( [ -~]{1,256})?"
    )
    meaning = "a public SSH key: type, base64 data and a comment, as in a file id_ed25519.pub"


class Peer(Document):
    """The data about a guest that the other guests of its network receive."""

    name: Name
    cluster: ClusterKey
    """Key of the guest's cluster. The guest's full name contains this key, such as `n1.demo.internal`."""
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""
    host_key: PublicKey | None = None
    """The public host key of the guest's SSH server."""
    cpus: int | None = None
    """Number of virtual processors. MPI host files contain this number as the guest's slots."""


class GuestSeed(Document):
    """The data that a guest reads at its first boot.

    Guests of a cluster use the cluster's key pair for SSH to each other.
    """

    user: UserName
    """The user that the guest creates."""
    authorized_keys: tuple[PublicKey, ...] = ()
    """The keys that may log in as this user, including the cluster's public key."""
    host_key: Secret
    """The private host key of the guest's SSH server: Ed25519, OpenSSH format."""
    cluster_key: Secret
    """The private key of the cluster's key pair: Ed25519, OpenSSH format."""
    user_data: str | None = None
    """The user's cloud-config, which is merged with the generated cloud-config."""


class ClusterPeers(Document):
    """The data for SSH logins to the guests of a cluster and of its network."""

    key: ClusterKey
    user: LoginName | None = None
    """The login name in the cluster's guests; null: an early version of SBF created the cluster, without seeds."""
    peers: tuple[Peer, ...] = ()
    """All guests of the cluster's network, with their public host keys."""
    network: str | None = None
    """The ID of the cluster whose network the guests use; null in answers of earlier versions of SBF."""


def render_known_hosts(peers: Iterable[Peer]) -> str:
    """Return one line for each guest with a host key: the guest's name, its addresses, and the key.

    With these lines, ssh asks no question about a guest's host key, and refuses any other key.
    """
    return "".join(
        f"{','.join([peer.name, *list_peer_addresses(peer)])} {peer.host_key}\n" for peer in peers if peer.host_key
    )


def list_peer_addresses(peer: Peer) -> list[str]:
    """Return the IP addresses of a guest, without the lengths of the networks."""
    return [str(ip_interface(address).ip) for address in peer.addresses]
