"""Resolves names with the system's resolver. The agent runs `main` as a child process.

A resolver may hang, and no thread can be interrupted in getaddrinfo(3). Therefore the agent ends this program after a
time limit. The program handles answers of strangers, so it runs without privileges. It uses only the standard library
(``python -I -S``). The input is a JSON array of names. The output is one line of JSON for each name, as soon as its
answer arrived.
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
"""The most addresses of a name that the agent reads."""
STACK_SIZE = 256 << 10
FINAL_ERRORS = {
    socket.EAI_NONAME: "DNS has no such name",
    getattr(socket, "EAI_NODATA", socket.EAI_NONAME): "DNS has no address of this name",
    getattr(socket, "EAI_ADDRFAMILY", socket.EAI_NONAME): "DNS has no address of this name",
}
"""Errors by which the resolver answers that there is no address. All others are failures of the resolver."""


def main() -> None:
    """Print the answers for the names on the standard input."""
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
