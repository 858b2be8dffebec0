"""Processes of the ``sbf`` command, as forks of one process that has imported SBF.

The imports take a second of processor time for each start of SBF; a fork takes 0.02 s. Tests of the start itself run
``python -m sbf_service`` instead.
"""

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from io import FileIO
from pathlib import Path
from subprocess import PIPE
from typing import IO, Self

PROGRAM = Path(__file__).with_name("sbf_process_program.py")
RUN_S = 60.0
PID_DIGITS = 10
Output = IO[str] | IO[bytes] | None


class SbfProcess:
    """A running command of ``sbf``, with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, *arguments: str, stderr: Output | int = None, stdout: Output = None) -> None:
        """Start a command. With ``stderr=PIPE``, its standard error is readable from :attr:`stderr`."""
        read, write = os.pipe() if stderr == PIPE else (None, None)
        self.stderr = None if read is None else os.fdopen(read)
        errors = write if write is not None else 2 if stderr is None or isinstance(stderr, int) else stderr.fileno()
        report, own_report = os.pipe()
        request = {"arguments": arguments, "umask": _read_umask(), "folder": str(Path.cwd())}
        outputs = [1 if stdout is None else stdout.fileno(), errors, own_report]
        socket.send_fds(_channel(), [json.dumps(request).encode()], outputs)
        for descriptor in {own_report, write}:
            if descriptor is not None:
                os.close(descriptor)
        self._report = FileIO(report)
        self.pid = int(self._report.read(PID_DIGITS))
        self.returncode: int | None = None
        self.address = ""
        """The TCP address of ``sbf serve``; "" before :meth:`read_address`."""

    def read_address(self) -> str:
        """Wait until ``sbf serve`` writes its TCP address to standard error. Return the address."""
        assert self.stderr is not None
        line = self.stderr.readline()
        self.address = find_address(line)
        assert self.address, line
        return self.address

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self.returncode = int(self._report.readall())
            self._report.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._report], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("sbf", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stderr is not None:
            self.stderr.close()
        self.wait()


def run_sbf(*arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = SbfProcess(*arguments, stdout=output, stderr=errors)
        try:
            code = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())


def find_address(log: str) -> str:
    """Return the TCP address in the log of ``sbf serve``; "" if the service does not listen yet."""
    found = re.search(r"\blistening tcp=(\S+) ", log)
    return "" if found is None else found[1]


def _read_umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


@cache
def _channel() -> socket.socket:
    """Start the process that forks itself for each command, and ends with the tests.

    Return the socket for requests.
    """
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, PROGRAM, str(its.fileno())], pass_fds=[its.fileno()])  # noqa: S603 - our own
    its.close()
    atexit.register(process.wait)
    atexit.register(own.close)
    return own
