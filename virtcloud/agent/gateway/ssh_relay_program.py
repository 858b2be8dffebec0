"""Connects a user's ssh with the sshd of a guest. This program is the shell of the only account of a gateway's sshd.

The agent copies this file to the sshd's mount namespace. The sshd runs the copy with ``python3 -I -S``, so the program
uses only the standard library. The command that the user's SSH client sends must be the name of a guest. The program
sends this name and the user's certificate to the agent, and receives a socket that is connected to the guest
(SCM_RIGHTS, unix(7)).
"""

import array
import json
import os
import socket
import threading
from pathlib import Path

SOCKET = "/etc/ssh/requests/agent.sock"
CHUNK = 65536
ANSWER_S = 30.0
DESCRIPTOR = array.array("i").itemsize


def main() -> int:
    """Run until the guest closes the connection. Return the exit code: 0, or 1 after an error message."""
    try:
        with _request_connection() as connection:
            _copy_streams(connection)
    except OSError as error:
        os.write(2, f"virtcloud: {error.strerror or error}\n".encode())
        return 1
    return 0


def _request_connection() -> socket.socket:
    request = {
        "guest": os.environ.get("SSH_ORIGINAL_COMMAND", ""),
        "proof": Path(os.environ["SSH_USER_AUTH"]).read_text(encoding="ascii"),
        "remote": " ".join(os.environ.get("SSH_CONNECTION", "").split()[:2]),
    }
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(ANSWER_S)
        try:
            agent.connect(SOCKET)
            agent.sendall(json.dumps(request).encode() + b"\n")
            answer, ancillary, _, _ = agent.recvmsg(CHUNK, socket.CMSG_SPACE(DESCRIPTOR))
        except OSError as error:
            raise OSError(error.errno, "the gateway's agent does not answer: try again in some seconds") from error
    if ancillary:
        return socket.socket(fileno=array.array("i", ancillary[0][2])[0])
    raise OSError(answer.decode(errors="replace").strip() or "the gateway's agent closed the connection: try again")


def _copy_streams(connection: socket.socket) -> None:
    """Copy data in both directions. At the end of the input, only the direction to the guest is closed."""
    threading.Thread(target=_copy_input, args=(connection,), daemon=True).start()
    while data := connection.recv(CHUNK):
        while data:
            data = data[os.write(1, data) :]


def _copy_input(connection: socket.socket) -> None:
    try:
        while data := os.read(0, CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the guest has closed the connection, and `_copy_streams` ends too
        return


if __name__ == "__main__":
    os._exit(main())  # the thread in `_copy_input` may still wait for input
