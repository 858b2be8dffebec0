"""SSH access to guests through a gateway: sshd of gateways, grants of users, and short-lived certificates.

A gateway runs one sshd for all clusters. Users prove their identity with certificates of SBF's SSH authority. The
grants in the gateway's wanted document determine which guests a user reaches, and until when. The gateway's sshd starts
no shell: it only connects the user's ssh with the sshd of a guest.
"""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.document import OMIT_EMPTY, Document
from virtcloud.model.guest_seed import Peer, PublicKey, Secret
from virtcloud.model.ssh_keys import UserKey
from virtcloud.model.values import Address, ClusterKey, LoginName, Name, UserName
from virtcloud.model.vpn import PendingElement, PortNumber, ServerHost

ACCOUNT: Final = "virtcloud"
"""The only account of a gateway's sshd, and a principal of each certificate."""
SSH_REVOCATIONS: Final = "ssh-revocations"
"""Capability that a segment requires if a grant of the segment lists revoked certificates. Agents without this
capability would accept these certificates.
"""


class SshListener(Document):
    """The sshd of a gateway, as the topology describes it."""

    address: ServerHost
    """The name or IP address by which users reach the gateway."""
    port: PortNumber = 2222
    """The TCP port. Port 22 is usually in use by another sshd, through which administrators log in to the gateway."""


class SshServer(Document):
    """The data that a gateway needs to run its sshd."""

    port: PortNumber
    """The TCP port."""
    authority: PublicKey
    """The public key of the authority that signs the certificates of users."""
    host_key: Secret
    """The private host key of the gateway's sshd, in OpenSSH's format."""


class SshGrant(Document):
    """The right of a user to reach the guests of a network with SSH."""

    cluster: str
    """ID of the cluster for which the user's certificates are made: the cluster that created the network, or a cluster
    that joined the network.
    """
    user: UserName
    expires_at: datetime
    """The end of the cluster's lease or of the network's lease, whichever is earlier."""
    revoked: Annotated[tuple[int, ...], OMIT_EMPTY] = ()
    """The serial numbers of the user's revoked certificates that a gateway might still accept, or that have open
    connections.
    """


class SshGuest(Document):
    """A guest that users reach with SSH."""

    cluster: str
    """ID of the guest's cluster."""
    name: Name
    """The guest's name."""
    addresses: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Addresses of the guest, each with its prefix length."""


class SshAccess(Document):
    """SSH access to a network through a gateway."""

    grants: tuple[SshGrant, ...]
    """The users who may connect."""
    guests: tuple[SshGuest, ...]
    """The guests of the network that have addresses."""


class SshGatewayView(Document):
    """A gateway through which users reach guests with SSH."""

    name: Name
    """The gateway's name."""
    address: ServerHost
    port: PortNumber
    """The TCP port of its sshd."""
    host_key: PublicKey
    """The public host key of its sshd."""


class SshAccessView(Document):
    """The gateways through which a cluster's guests are reachable with SSH, and until when."""

    cluster: ClusterKey
    cluster_id: str
    """ID of the cluster."""
    gateways: tuple[SshGatewayView, ...]
    """The gateways in order of preference; empty if no gateway of the cluster offers SSH."""
    pending: tuple[PendingElement, ...] = ()
    """The elements that have not confirmed the cluster yet."""
    lease_ends: datetime
    """The end of the cluster's lease or of the network's lease, whichever is earlier."""


class SshCertificateRequest(Document):
    """A request for a certificate. The private key stays with the caller."""

    public_key: UserKey
    """The public key to certify."""


class SshCertificateView(SshAccessView):
    """A certificate, with everything that ssh needs to reach the cluster's guests, except the private key."""

    user: UserName
    """The user whom the certificate identifies."""
    serial: int
    """The serial number of the certificate. The audit log and the gateway's log contain this number."""
    certificate: str
    """The certificate as one line, as in a file that ends in ``-cert.pub``."""
    expires_at: datetime
    """When the certificate becomes invalid."""
    guest_user: LoginName | None = None
    """The login name in the cluster's guests."""
    peers: tuple[Peer, ...] = ()
    """The guests of the cluster's network, with their public host keys."""
