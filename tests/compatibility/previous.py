"""The previous version of virtcloud, built from this repository's history and installed in a separate folder."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.1.0"
COMMIT = "44001931b9bee099d3ff27435b7bcc1ac58b4d61"
"""The last commit of the previous version."""
ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
CLI = ("-c", "from virtcloud.cli import main; main()")


@dataclass(frozen=True)
class Version:
    """An installed version. ``site`` is the folder with its packages, or None for this version."""

    name: str
    site: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables for a program of this version."""
        return dict(os.environ) if self.site is None else {**os.environ, "PYTHONPATH": str(self.site)}

    def run(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter of this version with these arguments outside the repository. Return the output."""
        env = {**self.environment, **environment}
        return subprocess.run(  # noqa: S603 - our own program
            [sys.executable, *argv], env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    def cli(self, url: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line against the SBF at ``url``."""
        return self.run(*CLI, *words, VIRTCLOUD_URL=url)


THIS = Version("this")


def installed(folder: Path) -> Version:
    """Build the previous version's wheel with this environment's hatchling, and install it into ``folder``.

    The installed version uses the dependencies of this environment. Nothing is downloaded.
    """
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)  # noqa: S603, S607
    assert archive.returncode == 0, (
        f"expected the history with commit {COMMIT} (version {VERSION}); a shallow clone lacks it "
        f"(git fetch --unshallow): {archive.stderr.decode()}"
    )
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(source, filter="data")
    build = (*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels), str(source))
    subprocess.run(build, check=True)  # noqa: S603 - our own program
    (wheel,) = wheels.glob(f"virtcloud-{VERSION}-*.whl")
    subprocess.run(  # noqa: S603 - our own program
        (*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)), check=True
    )
    shutil.rmtree(source)
    return Version("previous", site)
