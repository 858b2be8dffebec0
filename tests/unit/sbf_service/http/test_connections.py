import asyncio
import os
import pwd
import socket
from threading import Event

import pytest

from sbf_service.http.auth import connections
from sbf_service.http.auth.connections import LocalPeer, PeerConnection, peer_uid, request_peer
from virtcloud.model.errors import ServiceBusy


def test_a_local_socket_has_the_peers_user_id() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with near, far:
        assert peer_uid(near) == os.geteuid()


def test_a_local_users_name_is_looked_up() -> None:
    peer = asyncio.run(request_peer({connections.PEER_KEY: PeerConnection(os.geteuid())}))
    assert peer == LocalPeer(os.geteuid(), pwd.getpwuid(os.geteuid()).pw_name)


def test_a_hanging_user_directory_blocks_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """While getpwuid(3) waits for a directory server on the network, the event loop continues."""
    release = Event()
    monkeypatch.setattr(connections, "user_name", lambda _uid: str(release.wait()))
    monkeypatch.setattr(connections, "NAME_LOOKUP_TIMEOUT_S", 60.0)

    async def run() -> bool:
        lookup = asyncio.create_task(request_peer({connections.PEER_KEY: PeerConnection(1000)}))
        await asyncio.sleep(0.05)
        waited = not lookup.done()
        release.set()
        await lookup
        return waited

    assert asyncio.run(run())


def test_a_hanging_name_look_up_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Event()
    monkeypatch.setattr(connections, "user_name", lambda _uid: str(release.wait()))
    monkeypatch.setattr(connections, "NAME_LOOKUP_TIMEOUT_S", 0.02)

    async def run() -> None:
        with pytest.raises(ServiceBusy, match=r"user ID 1000: .*within 0.02 s.*getent passwd 1000"):
            await asyncio.wait_for(request_peer({connections.PEER_KEY: PeerConnection(1000)}), 60)

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_a_tcp_connection_has_no_peer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        assert (peer_uid(accepted), peer_uid(client)) == (None, None)
