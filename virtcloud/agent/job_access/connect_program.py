"""Asks a job's relay for a TCP connection to a guest. ssh runs this program as its ProxyCommand.

The agent copies this file to the job's folder. The job's user runs the copy with any Python: ``python3 -I -S connect
[--hand-over] [--wait S] SOCKET HOST PORT``. So the program uses only the standard library and the syntax of Python 3.6.

With ``--hand-over``, the program passes the connected socket to the parent process and ends (``ProxyUseFdpass``,
ssh_config(5)). Without this option, the program copies its input to the socket, and data from the socket to its output.
With ``--wait``, the program retries for S seconds if the guest or the relay refuses the connection. A guest's network
may be up before its sshd, and a relay limits the number of simultaneous requests.
"""

import argparse
import array
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from errno import ECONNREFUSED, EIO
from typing import Sequence

RETRY_S = 0.2
CHUNK = 65536
DESCRIPTOR = array.array("i").itemsize


def main(arguments: Sequence[str]) -> int:
    """Run the program. Return the exit code: 0, or 1 after an error message."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hand-over", action="store_true")
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("socket")
    parser.add_argument("host")
    parser.add_argument("port")
    options = parser.parse_args(arguments)
    try:
        with _connect_with_retry(options.socket, f"{options.host} {options.port}", options.wait) as connection:
            (_pass_descriptor if options.hand_over else _copy_streams)(connection)
    except OSError as error:
        sys.stderr.write(f"virtcloud: {error.strerror or error}\n")
        return 1
    return 0


def _connect_with_retry(path: str, line: str, wait_s: float) -> socket.socket:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return request_connection(path, line)
        except ConnectionRefusedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_S)


def request_connection(path: str, line: str) -> socket.socket:
    """Return a socket that is connected to a guest. ``path`` is the relay's socket. ``line`` is ``HOST PORT``.

    Raise ConnectionRefusedError if the guest refuses the connection, or if the relay has too many requests. Raise
    OSError for other errors of the relay.
    """
    with socket.socket(socket.AF_UNIX) as relay:
        try:
            relay.connect(path)
        except OSError as error:
            raise OSError(
                EIO, f"cannot connect to the job's relay {path}: {error.strerror}; check that the job still runs"
            ) from error
        with suppress(BrokenPipeError):  # the relay may refuse a request before the relay has read the line
            relay.sendall(f"{line}\n".encode())
        # The agent calls this function too: programs that the agent starts must not inherit the connection.
        answer, ancillary, _, _ = relay.recvmsg(CHUNK, socket.CMSG_SPACE(DESCRIPTOR), socket.MSG_CMSG_CLOEXEC)
    if ancillary:
        return socket.socket(fileno=array.array("i", ancillary[0][2])[0])
    message = answer.decode(errors="replace").strip() or "the job's relay ended"
    if message.startswith("refused"):
        raise ConnectionRefusedError(ECONNREFUSED, message)
    raise OSError(EIO, message)


def _pass_descriptor(connection: socket.socket) -> None:
    with socket.socket(fileno=os.dup(1)) as parent:
        parent.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])


def _copy_streams(connection: socket.socket) -> None:
    """Copy data in both directions. At the end of the input, only the direction to the guest is closed."""
    threading.Thread(target=_copy_input, args=(connection,), daemon=True).start()
    for data in iter(lambda: connection.recv(CHUNK), b""):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _copy_input(connection: socket.socket) -> None:
    try:
        for data in iter(lambda: os.read(0, CHUNK), b""):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the guest has closed the connection, and `_copy_streams` ends too
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
