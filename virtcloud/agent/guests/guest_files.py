"""Files of guests: a folder with the guest's disk and console log, and libvirt's logs of the guest's domain.

The folder ``<state>/guests/<domain>`` is created before the guest starts. The agent removes libvirt's logs before
the folder, because the folder's name shows which logs belong to a guest of the agent. A guest's disk is an overlay
(qcow2) over the image's disk. Guests never write to the image's disk. The overlay stays while the guest is wanted on
this host: a guest that was stopped or reset, or that ended by itself, starts with its former disk.
"""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.guests.guest_roots import ContainerRoots
from virtcloud.agent.guests.images import GuestImage, QemuImage
from virtcloud.agent.network import names
from virtcloud.model.errors import Refused

LIBVIRT_LOGS = Path("/var/log/libvirt")
DRIVERS = ("lxc", "qemu")
CONSOLE, DISK = "console.log", "disk.qcow2"
QCOW2_MAGIC = b"QFI\xfb"
FOLDER_MODE = 0o711  # QEMU runs as another user, who needs to enter the folder
CREATE_TIMEOUT_S = 60.0


class GuestFiles:
    """The files of all guests on this host."""

    def __init__(self, folder: Path, roots: ContainerRoots, libvirt_logs: Path = LIBVIRT_LOGS) -> None:
        """Store guests' folders in ``folder``, which is created when first needed. ``roots`` are in the same folder."""
        self._folder = folder
        self._roots = roots
        self._libvirt_logs = libvirt_logs

    def ensure(self, domain: str, image: GuestImage) -> Path:
        """Create the guest's folder, and an empty overlay if the image has a disk and the guest has no overlay yet.

        Return the folder.
        Raise Refused if the folder or the overlay cannot be created.
        """
        path = self._folder / domain
        with refuse_os_errors(f"create the guest's folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(FOLDER_MODE)
            has_disk = _is_complete(path / DISK)
        if isinstance(image, QemuImage) and image.disk and not has_disk:
            _create_overlay(path / DISK, image.disk, image.disk_format)
        return path

    def console_log(self, domain: str) -> Path:
        """Return the path of the log of a guest's console."""
        return self._folder / domain / CONSOLE

    def ensure_none(self, domain: str) -> None:
        """Remove a guest's files. Absent files raise no error. Raise Refused if a file cannot be removed."""
        with refuse_os_errors(f"remove the files of the guest {domain}"):
            for driver in DRIVERS:
                _remove_logs(self._libvirt_logs / driver, domain)
            _remove_logs(self._folder, domain)  # earlier versions of the agent stored logs here
            if (self._folder / domain).exists():
                self._roots.ensure_none(domain)
                shutil.rmtree(self._folder / domain)
                log.info("guest_files_removed", domain=domain)

    def ensure_none_of_cluster(self, cluster: str) -> None:
        """Remove the files of a cluster's guests, including guests that ended by themselves."""
        for domain in self.list_domains(names.domain_name_patterns(cluster)):
            self.ensure_none(domain)

    def ensure_none_but(self, domains: Iterable[str]) -> None:
        """Remove the files of all guests except those of ``domains``."""
        for domain in self.list_domains() - set(domains):
            self.ensure_none(domain)

    def list_domains(self, patterns: Iterable[str] = ("*",)) -> set[str]:
        """Return the names of the domains that have files here and match one of the patterns."""
        paths = (path for pattern in patterns for path in self._folder.glob(pattern))
        return {path.name if path.is_dir() else path.name.partition(".log")[0] for path in paths}


def _remove_logs(folder: Path, domain: str) -> None:
    """Remove a domain's log, and the logs that virtlogd and logrotate rotated."""
    for path in (folder / f"{domain}.log", *folder.glob(f"{domain}.log.*")):
        path.unlink(missing_ok=True)


def _is_complete(overlay: Path) -> bool:
    """Return whether a disk is a qcow2 file. A killed agent leaves an empty or incomplete file."""
    if not overlay.exists():
        return False
    with overlay.open("rb") as file:
        return file.read(len(QCOW2_MAGIC)) == QCOW2_MAGIC


def _create_overlay(overlay: Path, disk: Path, disk_format: str) -> None:
    new = overlay.with_name(f".{overlay.name}.new")
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk), "-F", disk_format, str(new)]
    try:
        result = subprocess.run(  # noqa: S603 - no shell; the paths are the administrator's
            argv, capture_output=True, text=True, check=False, timeout=CREATE_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise Refused(
            f"cannot create a guest's disk over {disk}: qemu-img is not installed; apt-get install qemu-utils"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"cannot create a guest's disk over {disk}: {error}") from error
    if result.returncode:
        raise Refused(f"cannot create a guest's disk {overlay} over {disk}: {' '.join(result.stderr.split())}")
    with refuse_os_errors(f"create the guest's disk {overlay}"):
        new.rename(overlay)
