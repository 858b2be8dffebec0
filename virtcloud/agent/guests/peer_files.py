"""The files that describe all guests of a network to each guest: names, host keys, and MPI host files.

A guest can use plain names (``n1``) only for guests of its own cluster, so a plain name never denotes a guest of
another cluster. Every guest also has a full name with its cluster's key (``n1.demo.internal``). The domain ``internal``
is reserved for private networks.

The agent mounts the folder of a container's peer files read-only in the container as ``/etc/virtcloud``. When another
cluster joins or leaves the network, the agent replaces the files while the container runs.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from ipaddress import ip_interface
from pathlib import Path
from typing import Final

from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.model.guest_seed import Peer, list_peer_addresses
from virtcloud.model.values import ClusterKey
from virtcloud.model.wanted import GuestWanted, Segment

HOSTS, KNOWN_HOSTS = "hosts", "known_hosts"
HOSTFILE, NETWORK_HOSTFILE = "hostfile", "network-hostfile"
"""The MPI host files: of the guest's own cluster, and of the whole network."""
FILE_NAMES: Final = (HOSTS, KNOWN_HOSTS, HOSTFILE, NETWORK_HOSTFILE)
PEERS = "peers"
"""The name of the folder of peer files in the guest's folder on the host."""
FOLDER_MODE, FILE_MODE = 0o755, 0o644
PRIVATE_DOMAIN: Final = "internal"
"""The top-level domain that ICANN reserved for private networks (resolution 2024.07.29.06)."""
PREAMBLE: Final = """\
# Written by virtcloud: the guests of this network.
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
"""
MAX_LABEL, MAX_KEY = 63, 200
"""Longest label (RFC 1035), and longest key in a full name. Full names have at most 253 characters."""
LABEL: Final = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{MAX_LABEL - 2}}}[a-z0-9])?")
HASHED: Final = re.compile(r".*-[0-9a-f]{16}")
"""The form of a label that ends with a digest: 16 hexadecimal digits after a hyphen.

In a full name, such a label replaces a key or a guest's name that is not legal in DNS (`full_name`). A legal key of
this form is replaced too; otherwise, a user could choose a key that equals the label of another cluster in the network.
The digest has 64 bits, so a user cannot find another key with the same digest.
"""

PeerFiles = dict[str, str]
"""The content of each file, by name."""


def render_peer_files(segment: Segment, guest: GuestWanted) -> PeerFiles:
    """Return the peer files of ``guest`` by name. In each file, the guests of the same cluster come first."""
    own_key = cluster_key(segment, guest)
    peers = sorted(segment.peers, key=lambda peer: peer.cluster != own_key)
    return {
        HOSTS: PREAMBLE + "".join((*_hosts_lines(peers, own_key), *_service_lines(segment, own_key))),
        HOSTFILE: "".join(_hostfile_line(peer, own_key) for peer in peers if peer.cluster == own_key),
        NETWORK_HOSTFILE: "".join(_hostfile_line(peer, own_key) for peer in peers),
        KNOWN_HOSTS: "".join(_known_hosts_line(peer, own_key) for peer in peers if peer.host_key),
    }


def hash_peer_files(files: PeerFiles) -> str:
    """Return a digest of the files' content."""
    return sha256("\0".join(f"{name}\0{files[name]}" for name in sorted(files)).encode()).hexdigest()[:16]


def cluster_key(segment: Segment, guest: GuestWanted) -> ClusterKey:
    """Return the key of the guest's cluster: the network's own cluster, or a cluster that joined the network."""
    return segment.members[guest.cluster] if guest.cluster else segment.key


def full_name(name: str, key: str) -> str:
    """Return a guest's full name, which is unique in the network and legal in DNS (RFC 1123).

    For example, "n1" and "demo" become "n1.demo.internal". If the key or the name is not legal, its legal characters
    and a digest form a label that replaces it.
    """
    is_legal = len(key) <= MAX_KEY and not HASHED.fullmatch(key) and all(map(LABEL.fullmatch, key.split(".")))
    domain = key if is_legal else _hashed_label(key)
    return f"{name if LABEL.fullmatch(name) else _hashed_label(name)}.{domain}.{PRIVATE_DOMAIN}"


def _hashed_label(text: str) -> str:
    legal = re.sub("[^a-z0-9]+", "-", text)[: MAX_LABEL - 17].strip("-")
    return f"{legal}-{sha256(text.encode()).hexdigest()[:16]}"


def _names(peer: Peer, own_key: str) -> list[str]:
    names = [full_name(peer.name, peer.cluster)]
    return [*names, peer.name] if peer.cluster == own_key else names


def _hosts_lines(peers: list[Peer], own_key: str) -> Iterator[str]:
    for peer in peers:
        for address in list_peer_addresses(peer):
            yield f"{address} {' '.join(_names(peer, own_key))}\n"


def _service_lines(segment: Segment, own_key: str) -> Iterator[str]:
    """Yield the lines of ``hosts`` for the network's services.

    The plain name of a service is omitted if a guest of the cluster ``own_key`` has the same name.
    """
    own_names = {peer.name for peer in segment.peers if peer.cluster == own_key}
    for service, address in list_service_addresses(segment):
        names = full_name(service, segment.key), *((service,) if service not in own_names else ())
        yield f"{address} {' '.join(names)}\n"


def list_service_addresses(segment: Segment) -> Iterator[tuple[str, str]]:
    """Yield (name, address) for each address of each service of a network, without the prefix length."""
    for service, addresses in segment.services.items():
        yield from ((service, str(ip_interface(address).ip)) for address in addresses)


def _hostfile_line(peer: Peer, own_key: str) -> str:
    name = _names(peer, own_key)[-1]
    return f"{name} slots={peer.cpus}\n" if peer.cpus else f"{name}\n"


def _known_hosts_line(peer: Peer, own_key: str) -> str:
    """Return the line of a guest in ``known_hosts`` (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT), without a comment."""
    kind, data = str(peer.host_key).split(" ")[:2]
    return f"{','.join((*_names(peer, own_key), *list_peer_addresses(peer)))} {kind} {data}\n"


def read_peer_files(guest_folder: Path) -> PeerFiles | None:
    """Return a guest's peer files by name. Return None if the guest has no folder of peer files.

    Raise Refused if reading fails.
    """
    folder = guest_folder / PEERS
    with refuse_os_errors(f"read the guest's folder {folder}"):
        if not folder.is_dir():
            return None
        present = (folder / name for name in FILE_NAMES if (folder / name).is_file())
        return {path.name: path.read_text(errors="replace") for path in present}


def write_peer_files(guest_folder: Path, files: PeerFiles) -> None:
    """Replace each of a guest's peer files atomically. Raise Refused if a file cannot be written."""
    folder = guest_folder / PEERS
    with refuse_os_errors(f"write the guest's folder {folder}"):
        folder.mkdir(exist_ok=True)
        folder.chmod(FOLDER_MODE)
        for name, text in files.items():
            write_durably(folder / name, text.encode(), FILE_MODE)
