"""Opens a TCP connection in another network namespace, and passes the socket to the agent (SCM_RIGHTS, unix(7)).

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. The arguments are the
descriptor of the namespace, the descriptor of the socket to the agent, the guest's port, and the guest's addresses in
the order of the attempts.
"""

import array
import os
import socket
import time
from collections.abc import Sequence

from virtcloud.agent.host_services.server_isolation import join_network_namespace

LIMIT_S = 10.0
"""Time limit in seconds of all attempts together."""


def main(arguments: Sequence[str]) -> None:
    """Send the agent the connected socket, or an error message if no address accepts the connection."""
    namespace, answer, port, *hosts = arguments
    with socket.socket(fileno=int(answer)) as agent:
        try:
            join_network_namespace(int(namespace))
            with _connect(hosts, int(port)) as connection:
                connection.setblocking(True)
                rights = array.array("i", [connection.fileno()])
                agent.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            agent.sendall((error.strerror or str(error)).encode())
            os._exit(1)


def _connect(hosts: Sequence[str], port: int) -> socket.socket:
    deadline, failure = time.monotonic() + LIMIT_S, OSError("the guest has no address")
    for number, host in enumerate(hosts):
        left = max(deadline - time.monotonic(), 0.1) / (len(hosts) - number)
        try:
            return socket.create_connection((host, port), timeout=left)
        except OSError as error:
            failure = OSError(error.errno, f"{host} port {port}: {error.strerror or error}")
    raise failure
