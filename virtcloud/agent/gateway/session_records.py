"""The connections of a VPN server, as the agent records them on the host and reports them to SBF.

A restarted agent disconnects devices that are not recorded. These devices connect again.
"""

from pathlib import Path

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.gateway.admission import DeviceSession
from virtcloud.agent.gateway.management_messages import ClientRow
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused
from virtcloud.model.vpn import VpnConnection, VpnProtocol


class RecordedSessions(Document):
    """The content of a record: the connections of one VPN server."""

    sessions: tuple[DeviceSession, ...] = ()


def describe_connection(session: DeviceSession, protocol: VpnProtocol, counters: ClientRow | None) -> VpnConnection:
    """Return a connection as the agent reports it to SBF. ``counters`` is None before the first reading of OpenVPN."""
    return VpnConnection(
        profile=session.profile,
        protocol=protocol,
        remote=(counters and counters.remote) or session.remote,
        connected_at=session.connected_at,
        received_bytes=counters.received_bytes if counters else 0,
        sent_bytes=counters.sent_bytes if counters else 0,
    )


class SessionRecords:
    """Reads and writes a file: the record of one VPN server's connections."""

    def __init__(self, path: Path) -> None:
        """Use the record ``path``."""
        self._path = path

    def read(self) -> tuple[DeviceSession, ...]:
        """Return the recorded connections, or () if the record is missing or unreadable. Log an unreadable record."""
        try:
            return RecordedSessions.model_validate_json(self._path.read_bytes()).sessions
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            log.warning("vpn_sessions_unreadable", file=self._path, error=error)
            return ()

    def write(self, sessions: tuple[DeviceSession, ...]) -> None:
        """Write ``sessions`` to the file. Log errors."""
        try:
            with refuse_os_errors(f"record the VPN connections in {self._path}"):
                new = self._path.with_suffix(".new")  # no fsync(2): a crash of the host ends all connections
                new.touch(mode=0o600)
                new.write_text(RecordedSessions(sessions=sessions).model_dump_json())
                new.rename(self._path)
        except Refused as error:
            log.warning("vpn_sessions_not_recorded", error=error)


def list_server_files(folder: Path) -> list[Path]:
    """Return the files in a VPN server's folder, including the incomplete records that a killed agent left.

    Raise Refused if the folder cannot be read.
    """
    with refuse_os_errors(f"read {folder}"):
        return [path for path in folder.iterdir() if not path.is_dir()] if folder.exists() else []
