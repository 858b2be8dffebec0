"""The processes of servers: their start by a program of this folder, and their records."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused

START_S = 20.0
"""Time limit in seconds for the start of a server."""
PACKAGE_ROOT = Path(__file__).parents[3]


class RecordedProcess(Document):
    """A process as the agent records it. ``started`` (clock ticks after the boot) and ``boot`` identify the process."""

    pid: int
    started: int
    boot: str

    def is_running(self, boot: str) -> bool:
        """Return whether the process runs. ``boot`` identifies the present boot of the host."""
        return self.boot == boot and read_start_time(self.pid) == self.started


Record = TypeVar("Record", bound=RecordedProcess)


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the record in a file. Return None if there is no readable record."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("server_record_unreadable", file=path, error=error)
        return None


def write_record(path: Path, record: RecordedProcess) -> None:
    """Replace a record. Raise Refused if the file cannot be written."""
    with refuse_os_errors(f"write the record {path}"):
        write_durably(path, record.model_dump_json().encode())


class ServerLaunch:
    """The start of a server by one of the programs of this folder. The server is found by the program's argument."""

    def __init__(self, server: str, program: str, argument: str, descriptors: Collection[int] = ()) -> None:
        """Start ``main`` of the module ``program``. ``server`` is the server's name in errors.

        The program inherits ``descriptors``. ``argument`` is also an argument of the server. Raise Refused if the
        program cannot start.
        """
        self._server = server
        code = f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); from {program} import main; main()"
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                [sys.executable, "-I", "-S", "-c", code, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
                pass_fds=descriptors,
            )
        except OSError as error:
            raise Refused(f"cannot start {server}: {error.strerror}") from error

    def wait_for_namespace(self) -> int:
        """Wait until the program has created its namespace. Return its process ID. Raise Refused if it fails."""
        line = self._read(until_end=False)
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(f"cannot start {self._server}: expected 'apart' and a process ID, got {line!r}")
        return int(pid)

    def configure(self, spec: dict[str, Any], ready: bytes | None = None) -> str:
        """Send the specification. Wait until the server is ready. Raise Refused with the error if it fails.

        Return the output of the server. A server is ready when it closes its output, or when its output contains
        ``ready``.
        """
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the program ended; its error follows
                self._process.stdin.write(json.dumps(spec).encode() + b"\n")
                self._process.stdin.flush()
        output = self._read(until_end=True, ready=ready)
        if output if ready is None else ready.decode() not in output:
            raise Refused(f"cannot start {self._server}: {output}")
        return output

    def close(self) -> None:
        """Close the pipes. A program without specification ends then."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()  # the program has forked, and its first process ends immediately

    def _read(self, *, until_end: bool, ready: bytes | None = None) -> str:
        """Return the output up to the next end of line, or up to ``ready``, or up to the end of the output."""
        text, deadline = b"", time.monotonic() + START_S
        if self._process.stdout is None:
            return ""
        descriptor, readable = self._process.stdout.fileno(), select.poll()
        readable.register(descriptor, select.POLLIN)
        while until_end or not text.endswith(b"\n"):
            if not readable.poll(max(deadline - time.monotonic(), 0) * 1000):
                return f"{text.decode(errors='replace')} (no answer within {START_S:.0f} s)"
            if not (data := os.read(descriptor, 4096)):
                break
            text += data
            if ready is not None and ready in text:
                break
        return text.decode(errors="replace").strip()
