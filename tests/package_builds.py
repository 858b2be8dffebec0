"""Builds of the wheels and of the Debian packages, for the tests in tests/packages."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOST = "brno-h1"
PACKAGES = ("virtcloud", "virtcloud-agent", "virtcloud-sbf")


@dataclass(frozen=True)
class Built:
    """The archive of wheels, and the folders of two builds of the Debian packages."""

    wheels: Path
    first: Path
    second: Path

    def package(self, name: str) -> Path:
        """Return the file of a Debian package of the first build."""
        (file,) = self.first.glob(f"{name}_*.deb")
        return file


def start_build(folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a build of the Debian packages, with temporary files in a folder of its own."""
    temporary = folder.with_name(f"{folder.name}-tmp")
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)} | variables
    return subprocess.Popen([ROOT / "setup/deb", folder], env=environment)  # noqa: S603 - our own
