import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def start(arguments: list[str], interrupted_at: str) -> "subprocess.CompletedProcess[str]":
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {interrupted_at!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["virtcloud", *{arguments!r}]
from virtcloud.command import main
sys.exit(main())
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize("module", ["virtcloud.cli", "click", "virtcloud.cli.groups", "virtcloud.cli.cluster"])
def test_ctrl_c_during_an_import_prints_no_traceback(module: str) -> None:
    done = start(["cluster", "list"], module)
    assert (done.returncode, done.stderr) == (130, "\nvirtcloud: interrupted\n")


def test_ctrl_c_while_the_agent_is_imported_prints_no_traceback() -> None:
    done = start(["agent", "--config", "/missing.toml"], "pydantic")
    assert (done.returncode, done.stderr) == (130, "\nvirtcloud: interrupted\n")


def test_the_installed_command_is_this_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["virtcloud"] == "virtcloud.command:main"
    assert "write_command virtcloud virtcloud virtcloud.command" in (ROOT / "setup/debian/stage").read_text()


@pytest.mark.parametrize("arguments", [["agent", "--help"], ["agent", "--wrong"], ["agent", "--config"]])
def test_the_command_line_handles_other_arguments_of_the_agent(arguments: list[str]) -> None:
    done = start(arguments, "")
    assert "Reconcile this host" in done.stdout or "Error: " in done.stderr


EXIT_AT_SIGNALS = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from virtcloud.cli.groups import exiting_at_signals

private = Path(sys.argv[1], "private")
private.touch()
with exiting_at_signals(), ExitStack() as stack:
    stack.callback(lambda: (os.kill(os.getpid(), signal.SIGHUP), private.unlink()))
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_signal_does_not_stop_the_removal_of_files(tmp_path: Path) -> None:
    """At the end of a user's login, systemd sends SIGTERM and then SIGHUP."""
    argv = [sys.executable, "-c", EXIT_AT_SIGNALS, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, list(tmp_path.iterdir())) == (143, []), done.stderr
