"""What a guest leaves on a machine: a folder with its disk and its console's log, and libvirt's logs of its domain.

The folder ``<state>/guests/<domain>`` is made before the guest is started and removed last: while it exists, the logs
of libvirt under that name are this guest's. A guest's disk is an overlay (qcow2) over the image's disk, which is never
written to. The overlay is made anew at each start, so what a crash left is in no start's way.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from virtcloud.agent import log
from virtcloud.agent.guests.images import GuestImage, QemuImage
from virtcloud.agent.network import names
from virtcloud.model.errors import Refused

LIBVIRT_LOGS = Path("/var/log/libvirt")
DRIVERS = ("lxc", "qemu")
CONSOLE, DISK = "console.log", "disk.qcow2"
PASSABLE = 0o711  # QEMU runs as a user of its own
CREATE_S = 60.0


class GuestFiles:
    """The traces of all guests on this machine."""

    def __init__(self, folder: Path, libvirt_logs: Path = LIBVIRT_LOGS) -> None:
        """Store guests' folders in ``folder``, which is created when first needed."""
        self._folder = folder
        self._libvirt_logs = libvirt_logs

    def ensure(self, domain: str, image: GuestImage) -> Path:
        """Return the guest's folder, with an empty overlay where the image has a disk; raise Refused."""
        place = self._folder / domain
        with _refused(f"make the guest's folder {place}"):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(PASSABLE)
            (place / DISK).unlink(missing_ok=True)
        if isinstance(image, QemuImage) and image.disk:
            _create_overlay(place / DISK, image.disk, image.disk_format)
        return place

    def ensure_none(self, domain: str) -> None:
        """Remove a guest's traces; none is success. Raise Refused."""
        with _refused(f"remove what the guest {domain} left"):
            for driver in DRIVERS:
                _remove_logs(self._libvirt_logs / driver, domain)
            _remove_logs(self._folder, domain)  # the log of a guest that an earlier version started
            if (self._folder / domain).exists():
                shutil.rmtree(self._folder / domain)
                log.info("guest_traces_removed", domain=domain)

    def ensure_none_of_cluster(self, cluster: str) -> None:
        """Remove the traces of a cluster's guests, also of those that ended by themselves."""
        for domain in self._known(names.domain_name_patterns(cluster)):
            self.ensure_none(domain)

    def ensure_none_but(self, domains: Iterable[str]) -> None:
        """Remove the traces of all guests but those whose domains exist."""
        for domain in self._known(("*",)) - set(domains):
            self.ensure_none(domain)

    def _known(self, patterns: Iterable[str]) -> set[str]:
        found = (path for pattern in patterns for path in self._folder.glob(pattern))
        return {path.name if path.is_dir() else path.name.partition(".log")[0] for path in found}


def _remove_logs(folder: Path, domain: str) -> None:
    """Remove a domain's log, and those that virtlogd or logrotate made of it."""
    for path in (folder / f"{domain}.log", *folder.glob(f"{domain}.log.*")):
        path.unlink(missing_ok=True)


def _create_overlay(overlay: Path, disk: Path, disk_format: str) -> None:
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk), "-F", disk_format, str(overlay)]
    try:
        done = subprocess.run(  # noqa: S603 - no shell; the paths are the administrator's
            argv, capture_output=True, text=True, check=False, timeout=CREATE_S
        )
    except FileNotFoundError as error:
        raise Refused(
            f"cannot create a guest's disk over {disk}: this machine has no qemu-img; apt-get install qemu-utils"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"cannot create a guest's disk over {disk}: {error}") from error
    if done.returncode:
        raise Refused(f"cannot create a guest's disk {overlay} over {disk}: {' '.join(done.stderr.split())}")


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {what}: {error.strerror} ({error.filename})") from error
