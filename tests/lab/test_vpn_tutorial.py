"""Runs each command of the tutorial ``docs/tutorial/join-from-your-laptop.md`` and compares its output with the page.

The lab runs already, so the commands that start and stop the lab are omitted.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud.lab import Lab
from virtcloud.lab.laptop import CONNECTED
from virtcloud.lab.state import DEFAULT_STATE_FOLDER

pytestmark = pytest.mark.lab

PAGE = Path(__file__).parents[2] / "docs/tutorial/join-from-your-laptop.md"
OMITTED = ("virtcloud lab up", "virtcloud lab down")
SECOND_TERMINAL = "virtcloud lab exec laptop openvpn"
LIMIT_S = 60


def read_commands() -> Iterator[tuple[str, str]]:
    """Yield the page's commands except `OMITTED`, each with the output that the page shows."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for command, output in re.findall(r"^# (.*)\n((?:(?!# ).*\n)*)", block, re.MULTILINE):
            if command not in OMITTED:
                yield command, output


def expected_output(text: str) -> re.Pattern[str]:
    """Return a pattern for an output of the page. ``…`` matches any text. A space matches one or more spaces."""
    words = [re.escape(word).replace("…", ".*?") for word in text.split()]
    return re.compile(r"\s+".join(words) if words else r"\s*", re.DOTALL)


def test_each_command_of_the_tutorial_prints_what_the_page_shows(lab: Lab, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTCLOUD_LAB_STATE": str(lab.state.folder),
        "VIRTCLOUD_URL": f"unix://{lab.sbf_socket}",
        "COLUMNS": "200",
    }
    commands = [
        (command.replace(DEFAULT_STATE_FOLDER, str(lab.state.folder)), output) for command, output in read_commands()
    ]
    (connect,) = (command for command, _ in commands if command.startswith(SECOND_TERMINAL))
    log, terminal = tmp_path / "log", None
    try:
        for command, output in commands:
            if command == connect:
                terminal = open_terminal(command, environment, log)
                printed = log.read_text()
            else:
                printed = type_command(command, environment, tmp_path)
            assert expected_output(output).search(printed), (command, printed)
        assert terminal is not None
        assert terminal.wait(LIMIT_S) == 0
    finally:
        if terminal is not None:
            terminal.kill()
            terminal.wait()
    assert "this profile gives no access: it was revoked" in log.read_text()


def type_command(command: str, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(  # noqa: S603 - a command of the page
        ["/bin/sh", "-c", command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout + done.stderr


def open_terminal(command: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        terminal = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], env=environment, stdout=file)  # noqa: S603
    deadline = time.monotonic() + LIMIT_S
    while CONNECTED not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return terminal
