"""A real SBF with an empty database and its own AF_UNIX socket, both in a temporary folder."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.programs.sbf_process import SbfProcess, find_address


@contextmanager
def running_sbf() -> Iterator[str]:
    pytest.importorskip("sbf_service.http", reason="NOT TESTED: SBF's libraries are not installed")
    folder = Path(tempfile.mkdtemp(prefix="sbf"))  # the path of a socket has at most 107 characters
    config, socket = folder / "sbf.toml", folder / "sbf.sock"
    lines = [f'database = "sqlite:///{folder}/sbf.db"', 'listen = "127.0.0.1:0"', f'socket = "{socket}"']
    from support.migrated import create_sqlite  # noqa: PLC0415 - needs SBF's libraries

    create_sqlite(f"sqlite:///{folder}/sbf.db")
    config.write_text("\n".join([*lines, "[timing]", "drain_deadline = 0.5", ""]))
    with (folder / "log").open("w") as log:
        process = SbfProcess("serve", "--config", str(config), stdout=log, stderr=log)
    try:
        _await(lambda: find_address((folder / "log").read_text()) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder)


def _await(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)
