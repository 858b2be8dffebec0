"""The processes of servers: their start by a program such as `dnsmasq_program`, and their records."""

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
from virtcloud.agent.files import LACK_OF_FILES, refuse_os_errors, write_durably
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused

START_S = 20.0
"""Time limit in seconds of each step of a server's start."""
PACKAGE_ROOT = Path(__file__).parents[3]


class RecordedProcess(Document):
    """The record of a process.

    ``started`` is the process's start in clock ticks after the boot with the boot ID ``boot``.
    """

    pid: int
    started: int
    boot: str

    def is_running(self, boot: str) -> bool:
        """Return whether the process runs. ``boot`` is the host's present boot ID."""
        return self.boot == boot and read_start_time(self.pid) == self.started


Record = TypeVar("Record", bound=RecordedProcess)


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the record in a file, or None if the file is missing or unreadable. Log an unreadable file.

    If this process or the host has too many open files, raise Refused: with None, the caller would replace a server
    that still runs.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        if isinstance(error, OSError) and error.errno in LACK_OF_FILES:
            raise Refused(f"cannot read {path}: {error.strerror}") from error
        log.warning("server_record_unreadable", file=path, error=error)
        return None


def write_record(path: Path, record: RecordedProcess) -> None:
    """Write a record to a file. Raise Refused if the file cannot be written."""
    with refuse_os_errors(f"write the record {path}"):
        write_durably(path, record.model_dump_json().encode())


class ServerLaunch:
    """The start of a server by a program that isolates itself and then becomes the server."""

    def __init__(self, server: str, program: str, argument: str, descriptors: Collection[int] = ()) -> None:
        """Start ``main`` of the module ``program``. ``server`` is the server's name in error messages.

        The program inherits ``descriptors`` and gets ``argument``, by which the agent later finds the process. Raise
        Refused if the program cannot start.
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
        """Wait until the program has printed ``apart``. Return the server's process ID.

        Raise Refused if the program fails.
        """
        line = self._read(until_end=False)
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(f"cannot start {self._server}: expected 'apart' and a process ID, got {line!r}")
        return int(pid)

    def configure(self, spec: dict[str, Any], ready: bytes | None = None) -> str:
        """Send the specification, wait until the server is ready, and return its output.

        The server is ready when its output contains ``ready``. If ``ready`` is None, the server is ready when its
        output has ended and is empty. Raise Refused with the output if the server fails.
        """
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the program has ended; its output contains the error
                self._process.stdin.write(json.dumps(spec).encode() + b"\n")
                self._process.stdin.flush()
        output = self._read(until_end=True, ready=ready)
        if output if ready is None else ready.decode() not in output:
            raise Refused(f"cannot start {self._server}: {output}")
        return output

    def close(self) -> None:
        """Close the pipes to the program. A program that has not received a specification then ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()  # returns at once: the first process ends after it has forked the server

    def _read(self, *, until_end: bool, ready: bytes | None = None) -> str:
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
