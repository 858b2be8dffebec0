"""The peers of a cluster, and their host keys in the format of ``known_hosts``.

Source of the format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from collections.abc import Iterable
from ipaddress import ip_interface

from virtcloud.model.document import Document
from virtcloud.model.guest_seed import Peer
from virtcloud.model.values import ClusterKey, LoginName


class ClusterPeers(Document):
    """How to log in to the guests of a cluster and of its network with SSH."""

    key: ClusterKey
    user: LoginName | None = None
    """The user of the cluster's guests; null: the cluster was created before SBF made seeds of guests."""
    peers: tuple[Peer, ...] = ()
    """All guests of the cluster's network, with their public host keys."""
    network: str | None = None
    """The id of the cluster whose network the guests use; null in answers of earlier versions."""


def render_known_hosts(peers: Iterable[Peer]) -> str:
    """Return one line for each guest with a host key: the guest's name, its addresses, and the key.

    With these lines, ssh asks no question about a guest's host key, and refuses any other key.
    """
    return "".join(
        f"{','.join([peer.name, *_list_addresses(peer)])} {peer.host_key}\n" for peer in peers if peer.host_key
    )


def _list_addresses(peer: Peer) -> list[str]:
    return [str(ip_interface(address).ip) for address in peer.addresses]
