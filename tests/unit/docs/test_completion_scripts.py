"""Tests of the completion scripts in setup/share, which bash, zsh and fish run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHARE = Path(__file__).parents[3] / "setup/share"
PROGRAMS = Path(sys.executable).parent
SETTINGS = f"""
virtcloud() {{ echo "<virtcloud $*>"; exit; }}
sbf() {{ echo "<sbf $*>"; exit; }}
PATH={PROGRAMS}:$PATH
"""
"""Commands for bash and zsh. The functions replace the programs, and print the completed line that the shell runs."""


def _typed(shell: str, line: str, folder: Path) -> str:
    done = subprocess.run(  # noqa: S603 - a shell
        ["script", "-qec", shell, "/dev/null"],  # noqa: S607
        input=f"{line}\t\n",
        cwd=folder,
        env=os.environ | {"ZDOTDIR": str(folder), "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = re.search("<(.*)>", done.stdout)
    assert found, done
    return found[1]


def _bash(line: str, folder: Path) -> str:
    scripts = "".join(f". {SHARE}/bash-completion/completions/{name}\n" for name in ("virtcloud", "sbf"))
    (folder / "bashrc").write_text(SETTINGS + scripts)
    return _typed("bash --rcfile bashrc -i", line, folder)


def _zsh(line: str, folder: Path) -> str:
    scripts = f"fpath+=({SHARE}/zsh/site-functions)\nautoload -U compinit\ncompinit -D -u\n"
    (folder / ".zshrc").write_text(SETTINGS + scripts)
    return _typed("zsh --no-globalrcs -i", line, folder)


def _fish(line: str, folder: Path) -> str:
    """Return the line with fish's completion of the last word."""
    return line.rpartition(" ")[0] + " " + _fish_completion(line, folder).partition("\t")[0]


def _fish_completion(line: str, folder: Path) -> str:
    """Return the completed word and, after a tab, its description."""
    scripts = "".join(f"source {SHARE}/fish/vendor_completions.d/{name}.fish; " for name in ("virtcloud", "sbf"))
    done = subprocess.run(  # noqa: S603 - a shell
        ["fish", "--no-config", "-c", f"{scripts} complete -C $argv", line],  # noqa: S607
        cwd=folder,
        env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.rstrip()


def _skip_without(shell: str) -> None:
    if not shutil.which(shell) and "VIRTCLOUD_REQUIRE_LAB" not in os.environ:
        pytest.skip(f"{shell} is not installed")


COMPLETED = [
    "sbf requestvlan",
    "virtcloud access list --kind",
    "virtcloud access list --kind=vpn",
    "virtcloud site import stored.yaml",
]


@pytest.mark.parametrize("completed", COMPLETED)
@pytest.mark.parametrize("shell", [_bash, _zsh, _fish])
def test_shells_complete_the_last_word(shell: Callable[[str, Path], str], completed: str, tmp_path: Path) -> None:
    _skip_without(shell.__name__.strip("_"))
    (tmp_path / "stored.yaml").touch()
    assert shell(completed[:-2], tmp_path) == completed


def test_fish_shows_a_description_with_a_comma(tmp_path: Path) -> None:
    _skip_without("fish")
    described = "set\tSet the pool of SITE to VLANS, for example 100-199,300."
    assert _fish_completion("virtcloud pool se", tmp_path) == described
