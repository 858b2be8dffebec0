"""``virtcloud cluster ssh``: the arguments of ssh for a guest that is reached through SBF and the agent of its host."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from virtcloud.cli import ConnectionOptions
from virtcloud.client.credentials import replace_private_file
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.guest_seed import Peer
from virtcloud.model.known_hosts import ClusterPeers, render_known_hosts

SERVER_ALIVE_S = 60
"""Interval of ssh's messages on an idle connection, so that SBF does not end the session."""


@dataclass(frozen=True, slots=True)
class SshCall:
    """The user's options and command for ssh."""

    user: str | None
    options: tuple[str, ...]
    identity: str | None
    command: tuple[str, ...]


def choose_guest(found: ClusterPeers, names: Sequence[str], name: str | None) -> Peer:
    """Return the named guest of the cluster's network, or else the cluster's first guest. Pure.

    Guests of the cluster come first, because another member of the network may use the same names. ``names``
    are the cluster's guests. Raise NotFound for an unknown guest.
    """
    if name is None and not names:
        raise BadInput(f"cluster {found.key} has no guests to log in to")
    wanted = name or names[0]
    own_first = sorted(found.peers, key=lambda peer: peer.cluster != found.key)
    peer = next((peer for peer in own_first if peer.name == wanted), None)
    if peer is None:
        known = ", ".join(peer.name for peer in found.peers) or "none"
        raise NotFound(f"cluster {found.key} has no guest {wanted}; its guests: {known}")
    return peer


def build_ssh_arguments(call: SshCall, peer: Peer, proxy: Sequence[str], known_hosts: Path) -> list[str]:
    """Return the arguments of ssh. Pure.

    The user's options come first, because ssh uses the first value of each option (ssh_config(5)). Without a known host
    key, ssh asks whether the guest's key is right.
    """
    proxy_command = shlex.join(proxy).replace("%", "%%")
    options = [
        *call.options,
        f"ProxyCommand={proxy_command} %p",
        f"HostKeyAlias={peer.name}",
        f"ServerAliveInterval={SERVER_ALIVE_S}",
    ]
    if peer.host_key is not None:
        options += [f"UserKnownHostsFile={known_hosts}", "GlobalKnownHostsFile=none", "StrictHostKeyChecking=yes"]
    identity = ["-i", call.identity] if call.identity else []
    user = ["-l", call.user] if call.user else []
    return ["ssh", *identity, *(word for option in options for word in ("-o", option)), *user, peer.name, *call.command]


def proxy_arguments(connection: ConnectionOptions, peer: Peer) -> list[str]:
    """Return the command that joins its standard streams with a port of the guest. ssh appends the port."""
    values = {
        "--url": connection.url,
        "--token-file": connection.token_file,
        "--ca-file": connection.ca_file,
        "--certificate": connection.certificate,
    }
    options = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    return [sys.executable, "-m", "virtcloud.cli", *options, "guest", "connect", peer.cluster, peer.name]


def write_known_hosts(found: ClusterPeers, cluster_id: str) -> Path:
    """Write the host keys of a cluster's network to a private file. Return the file's path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "virtcloud" / f"known_hosts-{cluster_id}"
    replace_private_file(path, render_known_hosts(found.peers))
    return path
