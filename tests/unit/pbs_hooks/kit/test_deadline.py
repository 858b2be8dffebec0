"""Tests of ``run_in_child``, called in a server process that has many open files."""

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pbs_hooks.kit.deadline import ChildError, Deadline, run_in_child

ABOVE_SELECT = 1024
"""The lowest descriptor that select(2) cannot wait for."""


@contextmanager
def limited_files(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_server_with_a_thousand_open_files_gets_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = os.pipe()
    with limited_files(2 * ABOVE_SELECT):
        high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE_SELECT) for end in pipe)
        for end in pipe:
            os.close(end)
        monkeypatch.setattr(os, "pipe", lambda: high)
        assert run_in_child(lambda: "done", Deadline(10)) == "done"


def test_a_server_without_free_descriptors_gets_the_reason() -> None:
    with limited_files(0), pytest.raises(ChildError, match="cannot start a process: Too many open files"):
        run_in_child(lambda: "done", Deadline(10))
