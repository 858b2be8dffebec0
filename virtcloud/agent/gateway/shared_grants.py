"""The grants and the latest connection of each profile, shared by all OpenVPN servers of a gateway.

A profile may have only one open connection, counted over all servers of the gateway.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from virtcloud.agent.gateway.admission import DeviceGrants, DeviceSession
from virtcloud.model.vpn import VpnProtocol


def _read_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class SharedGrants:
    """The data that the reconciler's thread and the threads of all servers share.

    ``grants`` is None until the agent has received a wanted document. ``latest`` maps each profile to the start time,
    the server's protocol and OpenVPN's number of its latest connection.
    """

    grants: DeviceGrants | None = None
    latest: dict[str, tuple[datetime, VpnProtocol, int]] = field(default_factory=dict)
    clock: Callable[[], datetime] = _read_clock
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A thread holds this lock while it changes ``latest``."""

    def receive(self, grants: DeviceGrants) -> None:
        """Replace the grants. Remove profiles without a grant from ``latest``."""
        profiles = {granted.grant.profile for granted in grants.values()}
        self.grants = grants
        with self.lock:
            self.latest = {profile: entry for profile, entry in self.latest.items() if profile in profiles}

    def note(self, protocol: VpnProtocol, session: DeviceSession) -> None:
        """Record a new connection as the latest connection of its profile.

        Times are not compared, because the host's clock may have been set back.
        """
        with self.lock:
            self.latest[session.profile] = (session.connected_at, protocol, session.client)

    def note_former(self, protocol: VpnProtocol, session: DeviceSession) -> None:
        """Record a connection that an earlier agent process admitted, unless a later connection is recorded."""
        former = self.latest.get(session.profile)
        if former is None or former < (session.connected_at, protocol, session.client):
            self.note(protocol, session)

    def is_latest(self, protocol: VpnProtocol, session: DeviceSession) -> bool:
        """Return whether no later connection of the same profile is recorded."""
        return self.latest.get(session.profile, (None, protocol, session.client))[1:] == (protocol, session.client)
