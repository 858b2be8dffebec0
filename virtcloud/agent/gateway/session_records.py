"""The record of a server's connections, by which the next agent recognizes them.

If a record cannot be written, devices connect nevertheless. The next agent would end their connections, and the devices
would connect again.
"""

from pathlib import Path

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.gateway.admission import DeviceSession
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused


class RecordedSessions(Document):
    """The connections of a server."""

    sessions: tuple[DeviceSession, ...] = ()


class SessionRecords:
    """The connections of a server, stored in a file."""

    def __init__(self, path: Path) -> None:
        """Store the connections in the file ``path``."""
        self._path = path

    def read(self) -> tuple[DeviceSession, ...]:
        """Return the recorded connections. A missing or unreadable record is logged, and has no connections."""
        try:
            return RecordedSessions.model_validate_json(self._path.read_bytes()).sessions
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            log.warning("vpn_sessions_unreadable", file=self._path, error=error)
            return ()

    def write(self, sessions: tuple[DeviceSession, ...]) -> None:
        """Replace the record. An error is logged."""
        try:
            with refuse_os_errors(f"record the VPN connections in {self._path}"):
                new = self._path.with_suffix(".new")  # not synchronized: no connection survives a crash of the host
                new.touch(mode=0o600)
                new.write_text(RecordedSessions(sessions=sessions).model_dump_json())
                new.rename(self._path)
        except Refused as error:
            log.warning("vpn_sessions_not_recorded", error=error)
