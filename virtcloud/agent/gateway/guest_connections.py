"""TCP connections from a gateway to guests, made in the network namespace of the guests' cluster.

Clusters may have the same addresses. Therefore a process enters the cluster's namespace, connects, and passes the
connected socket to the agent.
"""

import array
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ipaddress import ip_interface
from typing import Final

from virtcloud.agent.gateway import namespace_connect_program
from virtcloud.agent.host_services.server_processes import PACKAGE_ROOT
from virtcloud.model.errors import Refused
from virtcloud.model.values import Address

ConnectInNetwork = Callable[[str, Sequence[Address], int], socket.socket]
"""Connects to a guest. The arguments are the network's ID, the guest's addresses (tried in order), and the port.

Raises Refused if no connection can be made, and NotFound if the network has no namespace.
"""
OpenNamespace = Callable[[str], AbstractContextManager[int]]
"""Opens the namespace of a network by the network's ID, and yields a descriptor. Raises NotFound if no namespace
exists.
"""
LIMIT_S: Final = 10.0
"""Time limit in seconds of the process that connects."""
CODE: Final = (
    f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); "
    f"from {namespace_connect_program.__name__} import main; main(sys.argv[1:])"
)


def connect_by_namespace(open_namespace: OpenNamespace) -> ConnectInNetwork:
    """Return a function that connects in the namespaces that ``open_namespace`` opens."""

    def connect(network: str, addresses: Sequence[Address], port: int) -> socket.socket:
        with open_namespace(network) as namespace:
            return _connect(namespace, [str(ip_interface(address).ip) for address in addresses], port)

    return connect


def _connect(namespace: int, hosts: Sequence[str], port: int) -> socket.socket:
    own, other = socket.socketpair()
    with own, other:
        argv = [sys.executable, "-I", "-S", "-c", CODE, str(namespace), str(other.fileno()), str(port), *hosts]
        try:
            process = subprocess.Popen(  # noqa: S603 - a module of this package
                argv, stdin=subprocess.DEVNULL, cwd="/", pass_fds=(namespace, other.fileno())
            )
        except OSError as error:
            raise Refused(f"cannot start a connection: {error.strerror}") from error
        other.close()
        with process:
            own.settimeout(LIMIT_S + 1)
            try:
                # Programs that the agent starts must not inherit the connection.
                space, flags = socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                answer, ancillary, _, _ = own.recvmsg(1024, space, flags)
            except TimeoutError:
                process.kill()
                raise Refused(f"no answer within {LIMIT_S:.0f} s") from None
    if ancillary:
        return socket.socket(fileno=array.array("i", ancillary[0][2])[0])
    raise Refused(answer.decode(errors="replace") or "the connection could not be made")
