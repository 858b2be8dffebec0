"""Takes over a running OpenVPN server that an earlier agent process started.

Every hour, a connection renews its keys, and OpenVPN asks the agent for permission. OpenVPN does not repeat a request
that arrived while no agent was connected. After `openvpn_config.HANDSHAKE_S` seconds without an answer, OpenVPN refuses
the device, and the device's program ends. The new agent process does not know the lost requests. OpenVPN numbers the
keys of a connection in ascending order. Therefore the agent answers requests for the next keys. OpenVPN refuses answers
for keys that do not exist.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from virtcloud.agent.gateway.admission import DeviceRequest, DeviceSession
from virtcloud.agent.gateway.management_messages import (
    NOTICE_S,
    ClientRow,
    CommandDone,
    ManagementEvent,
    StatusDone,
    render_admission,
    render_end,
    render_notice,
)
from virtcloud.agent.gateway.management_socket import ManagementSocket, wait_for_event

LOST_KEYS: Final = 4
"""How many keys after the latest known key of a connection are permitted. OpenVPN also numbers keys that no device has
used yet: the first key of a connection usually has the number 1, and the second key has the number 3.
"""
RESTARTED: Final = "the gateway does not know this connection"


class TakenConnections(NamedTuple):
    """The recorded connections that are still open, with their counters, and the events that arrived meanwhile."""

    sessions: Mapping[int, DeviceSession]
    """By OpenVPN's number of the connection."""
    counters: Mapping[int, ClientRow]
    """By OpenVPN's number of the connection."""
    events: Sequence[ManagementEvent]


def take_over_server(connection: ManagementSocket, records: Iterable[DeviceSession], now: datetime) -> TakenConnections:
    """Take over the connections of a server. Permit renewals of keys that no agent process has answered.

    End each connection that is not recorded, because its network and the end of its grant are unknown. The command of
    `render_end` also closes recorded connections with the same common name. Their devices get a notice, and connect
    again at once. Raise Unreachable if the server does not answer.
    """
    events = _request_status(connection)
    rows = [row for event in events if isinstance(event, StatusDone) for row in event.clients]
    recorded = {(session.client, session.common_name): session for session in records}
    unknown = {row.common_name for row in rows if (row.client, row.common_name) not in recorded}
    counters = {row.client: row for row in rows if row.common_name not in unknown}
    sessions = {client: recorded[client, row.common_name] for client, row in counters.items()}
    if unknown:
        events += _end_unknown(connection, [row for row in rows if row.common_name in unknown])
    for session in sessions.values():
        events += _permit_lost_renewals(connection, session, now)
    return TakenConnections(
        sessions, counters, [one for one in events if not isinstance(one, StatusDone | CommandDone)]
    )


def _permit_lost_renewals(connection: ManagementSocket, session: DeviceSession, now: datetime) -> list[ManagementEvent]:
    """Permit the renewals of a connection before the session's end. Return the events that arrived.

    OpenVPN itself refuses a renewal with another certificate than the connection's certificate.
    """
    if session.key is None or session.expires_at <= now:
        return []
    for request in _list_next_requests(session, session.key):
        connection.send(render_admission(request, ()))
    return wait_for_event(connection, CommandDone, LOST_KEYS)


def _list_next_requests(session: DeviceSession, key: int) -> Iterator[DeviceRequest]:
    for number in range(key + 1, key + 1 + LOST_KEYS):
        yield DeviceRequest(
            session.client, number, session.fingerprint, session.common_name, session.remote, renews=True
        )


def _end_unknown(connection: ManagementSocket, rows: Sequence[ClientRow]) -> list[ManagementEvent]:
    for row in rows:
        connection.send(render_notice(row.client, RESTARTED, connects_again=True))
    events = _request_status(connection)  # this answer follows the answers to the notices
    time.sleep(NOTICE_S)
    for command in filter(None, map(render_end, sorted({row.common_name for row in rows}))):
        connection.send(command)
    return events + _request_status(connection)


def _request_status(connection: ManagementSocket) -> list[ManagementEvent]:
    connection.send("status 3")
    return wait_for_event(connection, StatusDone)
