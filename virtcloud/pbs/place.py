"""Where this machine's OpenPBS is: its commands, its spool, its own Python."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from virtcloud.model.errors import NotFound

CONF = "/etc/pbs.conf"
USUAL = "/opt/pbs"


@dataclass(frozen=True, slots=True)
class Place:
    """An installed OpenPBS: ``exec`` has its programs, ``home`` what a running one keeps."""

    exec: Path
    home: Path

    def program(self, name: str) -> Path:
        """Give a command's file; raises :class:`NotFound`."""
        for folder in ("bin", "sbin"):
            if (self.exec / folder / name).exists():
                return self.exec / folder / name
        raise NotFound(f"{name}: expected it in {self.exec}/bin or {self.exec}/sbin, got none; is OpenPBS whole there?")


def conf(text: str) -> dict[str, str]:
    """Read a pbs.conf; what comes later counts, as with PBS."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def find(environment: Mapping[str, str] = os.environ) -> Place:
    """Find OpenPBS by pbs.conf, by its usual place, or by ``qmgr`` on PATH; raises :class:`NotFound`."""
    file = Path(environment.get("PBS_CONF_FILE", CONF))
    said = {**conf(file.read_text() if file.is_file() else ""), **environment}
    on_path = shutil.which("qmgr", path=environment.get("PATH"))
    by_path = [Path(on_path).resolve().parents[1]] if on_path else []
    candidates = [*(Path(said[key]) for key in ("PBS_EXEC",) if key in said), Path(USUAL), *by_path]
    for one in candidates:
        if (one / "bin/qmgr").exists():
            return Place(one, Path(said.get("PBS_HOME", "/var/spool/pbs")))
    looked = ", ".join(dict.fromkeys(f"{one}/bin" for one in candidates))
    raise NotFound(
        f"qmgr: expected OpenPBS's command in {looked} or on PATH, got none; run this on the host of the PBS server, "
        "or say in PBS_EXEC where OpenPBS is"
    )
