"""What interfaces of the host were like before a segment took them, on disk until they are put back.

A file for each interface, ``<state>/uplinks/<name>.json``, is written through to the disk before the interface is
changed, and removed after it was put back: an agent that is killed in between puts it back later. A record is of one
boot and one interface index; after a reboot, or when the interface was made anew, the host itself has set it up.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.ports import Found
from virtcloud.model.errors import Refused

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Uplinks:
    """The records of this boot."""

    def __init__(self, folder: Path, boot: str | None = None) -> None:
        """Store records in ``folder``, which is created when first needed."""
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()

    def all(self) -> list[Found]:
        """Return the records, by the interfaces' names."""
        with _refused(f"read the records of {self._folder}"):
            found = [_read(path) for path in sorted(self._folder.glob("*.json"))]
        return [one for one in found if one is not None and one.boot == self._boot]

    def record(self, found: Found) -> None:
        """Write a record in the place of the interface's former one, through to the disk."""
        place = self._folder / f"{found.uplink}.json"
        new = self._folder / f".{found.uplink}.new"
        with _refused(f"record what {found.uplink} was like in {self._folder}; it was left alone"):
            self._folder.mkdir(parents=True, exist_ok=True)
            with new.open("w") as file:
                file.write(found.model_copy(update={"boot": self._boot}).model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            new.rename(place)
            _sync(self._folder)

    def forget(self, uplink: str) -> None:
        """Remove a record; none is success."""
        with _refused(f"remove the record of {uplink} in {self._folder}"):
            (self._folder / f"{uplink}.json").unlink(missing_ok=True)


def _read(path: Path) -> Found | None:
    try:
        return Found.model_validate_json(path.read_bytes())
    except ValidationError as error:
        log.warning("uplink_unreadable", file=path, error=error.errors()[0]["msg"])
        return None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {what}: {error.strerror}") from error
