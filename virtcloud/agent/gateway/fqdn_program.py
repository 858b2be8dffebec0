"""Resolves names with the system's resolver.

The agent runs `main` as a child process with ``python -I -S``, so this module and the module that it imports use only
the standard library. The agent kills the program after a time limit, because getaddrinfo(3) cannot be interrupted. The
program runs without privileges, because it parses answers of untrusted DNS servers. The input is a JSON array of names.
The output is one line of JSON for each name, written as soon as the resolver answers.
"""

import json
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from virtcloud.agent.host_services.server_isolation import drop_privileges, limit_resources

NOBODY = 65534
MAX_THREADS = 64
MAX_ANSWER = 128
"""Limit of addresses that the program prints for one name."""
STACK_SIZE = 256 << 10
FINAL_ERRORS = {
    socket.EAI_NONAME: "DNS has no such name",
    getattr(socket, "EAI_NODATA", socket.EAI_NONAME): "DNS has no address of this name",
    getattr(socket, "EAI_ADDRFAMILY", socket.EAI_NONAME): "DNS has no address of this name",
}
"""Errors of getaddrinfo(3) for a name without addresses; all other errors are temporary."""


def main() -> None:
    """Resolve the names from the standard input, and print the answers."""
    names = json.load(sys.stdin)
    limit_resources()
    if os.geteuid() == 0:
        drop_privileges(NOBODY, NOBODY, ())
    threading.stack_size(STACK_SIZE)
    with ThreadPoolExecutor(max(1, min(MAX_THREADS, len(names)))) as pool:
        for name in names:
            pool.submit(_print_answer, name)


def _print_answer(name: str) -> None:
    os.write(1, json.dumps({"name": name, **_resolve(name)}).encode() + b"\n")


def _resolve(name: str) -> dict[str, Any]:
    try:
        found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in FINAL_ERRORS:
            return {"error": FINAL_ERRORS[error.errno]}
        return {"error": f"the resolver failed: {error.strerror}", "is_temporary": True}
    except OSError as error:
        return {"error": f"the resolver failed: {error}", "is_temporary": True}
    addresses = dict.fromkeys(str(address).partition("%")[0] for *_, (address, *_) in found)
    return {"addresses": list(addresses)[:MAX_ANSWER]}
