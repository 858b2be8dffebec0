"""Functions by which programs isolate themselves before they become servers.

The agent runs these programs with ``python -I -S``, so this module uses only the standard library.
"""

import ctypes
import json
import os
import resource
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000  # linux/sched.h
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 8, 24, 38  # linux/prctl.h
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
NET_BIND_SERVICE, NET_ADMIN, NET_RAW = 10, 12, 13
LAST_CAPABILITY = 63
LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_AS: 256 << 20,
}
NICENESS = 5
"""The nice value of a server. If a guest sends many requests, the host's other processes have precedence."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def create_network_namespace() -> None:
    """Move this process to a new network namespace, which has no name and ends with its last process."""
    call("create a network namespace", _LIBC.unshare(CLONE_NEWNET))


def join_network_namespace(descriptor: int) -> None:
    """Move this process to the network namespace of ``descriptor``, and close ``descriptor``.

    ``descriptor`` is an open file such as ``/proc/PID/ns/net``.
    """
    call("join a network namespace", _LIBC.setns(descriptor, CLONE_NEWNET))
    os.close(descriptor)


def fork_from_agent() -> None:
    """Fork, and print ``apart`` and the child's process ID. Return in the child. The parent ends.

    So the server is no child process of the agent.
    """
    if os.fork():
        os._exit(0)
    os.write(1, f"apart {os.getpid()}\n".encode())


def read_specification() -> Any:  # noqa: ANN401 - JSON
    """Read the specification from stdin: one line of JSON. Exit if the agent ended before it sent the line."""
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()


def limit_resources() -> None:
    """Set the resource limits and the nice value of this process."""
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    os.nice(NICENESS)


def drop_privileges(uid: int, gid: int, kept: Collection[int]) -> None:
    """Change to a user and group. Drop all capabilities except ``kept``.

    Programs that this process executes also have the ``kept`` capabilities (capabilities(7), ambient set). Set-user-ID
    bits and file capabilities give these programs no further privileges (``no_new_privs``).
    """
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in kept:
            _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for capabilities that the kernel does not have
    call("keep capabilities", _LIBC.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    bits = sum(1 << capability for capability in kept)
    header, data = struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", bits, bits, bits, 0, 0, 0)
    call("drop capabilities", _LIBC.capset(header, data))
    for capability in kept:
        call("keep capabilities", _LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))
    call("forbid new privileges", _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def forbid_inspection() -> None:
    """Prevent other processes of this user, such as another cluster's dnsmasq, from reading this process's memory."""
    call("forbid inspection", _LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def close_input() -> None:
    """Replace the standard input by /dev/null."""
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)


def call(action: str, result: int) -> None:
    """Raise OSError with ``action`` in the message if ``result`` of a C function is not 0."""
    if result:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"cannot {action}: {os.strerror(error_number)}")
