"""Former versions of virtcloud, built from this repository's history and installed in separate folders."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from compatibility.command_line import CommandLine

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


@dataclass(frozen=True)
class FormerCommit:
    """A commit from which a former version is built, and the version of its wheel."""

    version: str
    commit: str


PREVIOUS = FormerCommit("0.1.0", "44001931b9bee099d3ff27435b7bcc1ac58b4d61")
BEFORE_RESTRUCTURING = FormerCommit("0.2.0", "1b2e1331a706467f0510f32cde31b32afcae4bdd")
"""The last commit before the modules of version 0.2 were moved and renamed."""


@dataclass(frozen=True)
class Version:
    """An installed version. ``site`` is the folder with its packages, or None for the current version."""

    name: str
    site: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ) if self.site is None else {**os.environ, "PYTHONPATH": str(self.site)}

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**self.environment, **environment}
        return subprocess.run(  # noqa: S603 - our own program
            [sys.executable, *argv], env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    def cli(self, url: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this version against the SBF at ``url``.

        One process imports this version, and forks for each command. The process runs until :func:`end_command_lines`.
        """
        if self not in COMMAND_LINES:
            COMMAND_LINES[self] = CommandLine(self.environment)
        return COMMAND_LINES[self].run(words, VIRTCLOUD_URL=url)


THIS = Version("this")
COMMAND_LINES: dict[Version, CommandLine] = {}


def end_command_lines() -> None:
    while COMMAND_LINES:
        COMMAND_LINES.popitem()[1].end()


def installed(folder: Path, former: FormerCommit) -> Version:
    """Build the wheel of a former version with this environment's hatchling. Install the wheel into ``folder``.

    The installed version uses the dependencies of this environment. Nothing is downloaded.
    """
    archive = subprocess.run(["git", "archive", former.commit], cwd=ROOT, capture_output=True, check=False)  # noqa: S603, S607
    assert archive.returncode == 0, (
        f"expected the history with commit {former.commit} (version {former.version}); a shallow clone lacks it "
        f"(git fetch --unshallow): {archive.stderr.decode()}"
    )
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    source.mkdir()
    subprocess.run(("tar", "-x", "-C", str(source)), input=archive.stdout, check=True)  # noqa: S603, S607
    build = (*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels), str(source))
    subprocess.run(build, check=True)  # noqa: S603 - our own program
    (wheel,) = wheels.glob(f"virtcloud-{former.version}-*.whl")
    subprocess.run(  # noqa: S603 - our own program
        (*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)), check=True
    )
    shutil.rmtree(source)
    return Version(former.commit, site)
