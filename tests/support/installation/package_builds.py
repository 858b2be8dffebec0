"""Builds of the wheels and of the Debian packages, for the tests in tests/packages and tests/playbooks."""

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOST = "brno-h1"
PACKAGES = ("virtcloud", "virtcloud-agent", "virtcloud-sbf")
CACHE = Path("/var/cache/virtcloud/tests")
SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "virtcloud", "pbs_hooks", "sbf_service", "sbf_command"),
    *("setup/requirements.lock", "setup/versions", "setup/wheels", "setup/share"),
)
"""The files and folders from which ``setup/wheels`` builds the archive of wheels."""
KEPT_ARCHIVES = 3


@dataclass(frozen=True)
class Built:
    """The folders of two builds of the Debian packages."""

    first: Path
    second: Path

    def package(self, name: str) -> Path:
        (file,) = self.first.glob(f"{name}_*.deb")
        return file


def ensure_wheels() -> Path:
    """Return the archive that ``make wheels`` writes, from the cache if the sources are unchanged.

    If ``VIRTCLOUD_TEST_WHEELS`` names an archive, return that archive.
    """
    if given := os.environ.get("VIRTCLOUD_TEST_WHEELS"):
        return Path(given)
    archive = CACHE / f"wheels-{_hash_sources()}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            subprocess.run([ROOT / "setup/wheels", archive], check=True)  # noqa: S603 - our own
        archive.touch()
        for old in sorted(CACHE.glob("wheels-*.tar"), key=lambda file: file.stat().st_mtime)[:-KEPT_ARCHIVES]:
            old.unlink()
    return archive


def _hash_sources() -> str:
    hashed = sha256(sys.version.encode())
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                hashed.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return hashed.hexdigest()[:12]


def start_build(folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    temporary = folder.with_name(f"{folder.name}-tmp")
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)} | variables
    return subprocess.Popen([ROOT / "setup/deb", folder], env=environment)  # noqa: S603 - our own
