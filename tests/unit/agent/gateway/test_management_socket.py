"""Tests of the connection to the management socket of an OpenVPN server, without OpenVPN."""

import select
import socket
from pathlib import Path

from virtcloud.agent.gateway.management_socket import UnixManagementSocket


def test_a_closed_connection_writes_to_no_other_file(tmp_path: Path) -> None:
    """The operating system gives the descriptor numbers of a closed connection to the next opened files."""
    path = tmp_path / "management.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        connection = UnixManagementSocket(path)
        connection.close()
        others = [end for _ in range(3) for end in socket.socketpair()]
        connection.wake()
        written = select.select(others, [], [], 0)[0]
        for end in others:
            end.close()
    assert written == []
