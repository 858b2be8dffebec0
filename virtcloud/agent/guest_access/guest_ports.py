"""TCP connections to guests' ports through a relay inside the guests' network.

The relay is a process in a separate network namespace with one port on the network's bridge. The host's network cannot
be reached from this namespace. A network's relay exists while users are connected to the network's guests.
"""

import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.job_access.access import JobAccess, guest_subnets
from virtcloud.agent.job_access.connect_program import request_connection
from virtcloud.agent.network.names import SESSIONS_PREFIX
from virtcloud.model.errors import Refused
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.wanted import Segment

PREFIX = SESSIONS_PREFIX
"""The key of a network's relay is this prefix and the network's ID."""


class NetworkRelays(Protocol):
    """Creates and removes relays in networks. All methods are idempotent."""

    def ensure(self, access: JobAccess, uid: int) -> Path:
        """Create a relay to which the user ``uid`` can connect. Return the path of the relay's socket."""

    def ensure_none(self, key: str) -> None:
        """Remove a relay."""


class GuestPorts:
    """Connections to the ports of this host's guests. Thread-safe."""

    def __init__(self, relays: NetworkRelays) -> None:
        """Store ``relays``, with which `connect` creates relays."""
        self._relays = relays
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._open: dict[str, tuple[JobAccess, Path]] = {}

    @contextmanager
    def connect(self, segment: Segment, guest: Name, port: int) -> Iterator[socket.socket]:
        """Connect to a port of a guest within the block. Yield the connected socket.

        ``guest`` must be a guest of ``segment``. Raise Refused if the relay cannot be created. Also raise Refused if
        the guest has no address, does not answer, or refuses the connection.
        """
        address = _find_address(segment, guest)
        with self._relay(segment, address) as path:
            try:
                connection = request_connection(str(path), f"{address.ip} {port}")
            except ConnectionRefusedError as error:
                raise Refused(
                    f"no process of guest {guest} listens at port {port} ({address.ip}); the guest may still be "
                    "starting (virtcloud guest log), or its image has no server for this port"
                ) from error
            except OSError as error:
                raise Refused(f"cannot reach port {port} of guest {guest}: {error.strerror or error}") from error
            with connection:
                yield connection

    def remove_orphans(self, sockets: Iterable[Path]) -> None:
        """Remove the relays that a killed agent left. ``sockets`` are the files in the folder of relays' sockets."""
        for path in sockets:
            _, found, network = path.name.partition(f".relay-{PREFIX}")
            if found:
                try:
                    self._relays.ensure_none(PREFIX + network)
                except Refused as error:
                    log.warning("relay_not_removed", network=network, error=error)

    @contextmanager
    def _relay(self, segment: Segment, address: IPv4Interface | IPv6Interface) -> Iterator[Path]:
        """Yield the path of the relay's socket. After the block, remove the relay if no other thread uses it."""
        key = PREFIX + segment.id
        with self._lock:
            path = self._ensure(key, segment, address)
            self._users[key] += 1
        try:
            yield path
        finally:
            with self._lock:
                self._users -= Counter([key])
                if not self._users[key]:
                    self._open.pop(key, None)
                    with suppress(Refused):
                        self._relays.ensure_none(key)

    def _ensure(self, key: str, segment: Segment, address: IPv4Interface | IPv6Interface) -> Path:
        """Create the relay if necessary. Return the path of its socket.

        Replace a relay in use only if it does not reach the subnet of ``address``, or the network's VLAN ID has
        changed.
        """
        access = _describe_access(key, segment)
        opened = self._open.get(key)
        if opened is not None and self._users[key] and opened[0].vlan == access.vlan:
            subnets = guest_subnets(opened[0].guests)
            if address.network in subnets:
                return opened[1]
        path = self._relays.ensure(access, 0)
        self._open[key] = access, path
        return path


def _find_address(segment: Segment, name: Name) -> IPv4Interface | IPv6Interface:
    guest = next(guest for guest in segment.guests if guest.name == name)
    if not guest.addresses:
        raise Refused(f"guest {name} has no address in the cluster's spec: add an address, or use its console")
    return ip_interface(guest.addresses[0])


def _describe_access(key: str, segment: Segment) -> JobAccess:
    """Return the description of a relay to all guests of a network.

    The agent probes addresses to find a free address for the relay in each subnet. A user's command for all guests
    opens relays on all hosts at the same time. While a host probes an address, the host does not answer other hosts'
    probes for this address. Therefore each host begins its search with a different address.
    """
    addresses = [(peer.name, peer.addresses) for peer in segment.peers]
    addresses += [(guest.name, guest.addresses) for guest in segment.guests]
    guests = (Guest(name=name, host=Name("host"), image=Name("image"), addresses=found) for name, found in addresses)
    return JobAccess(
        key=ClusterKey(key),
        user="root",
        vlan=segment.vlan,
        network=segment.id,
        guests=tuple(guests),
        first_candidate=_find_rank(segment),
    )


def _find_rank(segment: Segment) -> int:
    """Return the index of this host's first guest among all guests of the network.

    Every host with a guest in ``segment.peers`` has a different index.
    """
    local = {(guest.name, guest.addresses) for guest in segment.guests}
    ranks = [rank for rank, peer in enumerate(segment.peers) if (peer.name, peer.addresses) in local]
    return ranks[0] if ranks else 0
