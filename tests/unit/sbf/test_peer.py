"""Who is at the other end of a socket, as the kernel says."""

import os
import pwd
import socket

from sbf_service.http.peer import Peer, peer_of


def test_the_kernel_says_who_connected_on_a_local_socket() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        assert peer_of(one) == Peer(os.geteuid(), pwd.getpwuid(os.geteuid()).pw_name)


def test_who_comes_over_tcp_is_nobody_we_know() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        assert (peer_of(accepted), peer_of(client)) == (None, None)
