"""Files of guests: a folder with the disks and the console log, and libvirt's logs and folders of the guest's domain.

The agent creates the folder ``<state>/guests/<domain>`` before the guest starts. The folder remains while the guest is
wanted on this host. So a guest that was stopped or reset, or ended by itself, starts again with the same disks. The
agent removes libvirt's logs and folders before the agent's own folder. If the agent is killed in between, its own
folder still shows what must be removed.
"""

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests.control_groups import LIBVIRT_LXC, ContainerGroups, ContainerLimits
from virtcloud.agent.guests.guest_roots import ContainerRoots
from virtcloud.agent.network import names
from virtcloud.model.errors import Refused

LIBVIRT_LOGS = Path("/var/log/libvirt")
CONTAINER_FOLDERS = ("dev", "devpts", "fuse")
"""The suffixes of the folders that libvirt creates for each container, and does not remove at the container's end."""
DRIVERS = ("lxc", "qemu")
CONSOLE = "console.log"
WANTED_LIMIT = "pids.new"
"""A file with the wanted limit of a container's processes, written shortly before the container's start."""
LIMITED_START = "pids.set"
"""A file that identifies the container's start for which the limit is set (`ContainerGroups.limit_started`)."""
FOLDER_MODE = 0o711  # QEMU's user needs to enter the folder


class GuestFiles:
    """The files of this host's guests."""

    def __init__(
        self,
        folder: Path,
        roots: ContainerRoots,
        groups: ContainerGroups,
        progress: Callable[[], object],
    ) -> None:
        """Create an object for guests' folders below ``folder``, which ``roots`` also uses.

        When a guest's files are removed, its control group in ``groups`` is removed too. ``progress`` is called after
        the removal of each guest's files.
        """
        self._folder = folder
        self._groups = groups
        self._roots = roots
        self._progress = progress

    def ensure(self, domain: str) -> Path:
        """Create the guest's folder and return it. Raise Refused on failure."""
        path = self._folder / domain
        with refuse_os_errors(f"create the guest's folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(FOLDER_MODE)
        return path

    def console_log(self, domain: str) -> Path:
        """Return the path of a console's log."""
        return self._folder / domain / CONSOLE

    def request_limit(self, domain: str, limits: ContainerLimits | None) -> None:
        """Record the wanted limit of a container's processes, which `limit_started` sets later.

        If ``limits`` is None, remove the record of a former container. Raise Refused on failure.
        """
        path = self._folder / domain / WANTED_LIMIT
        with refuse_os_errors(f"write {path}"):
            path.with_name(LIMITED_START).unlink(missing_ok=True)
            if limits is None:
                path.unlink(missing_ok=True)
            else:
                write_durably(path, str(limits.pids).encode(), sync_folder=False)

    def limit_started(self, domain: str) -> None:
        """Limit the processes of a running container, unless the limit was set since the start. Idempotent.

        A running container can lack this limit for three reasons:

        * The agent was killed between the container's start and the setting of the limit.
        * The container's start exceeded the start's time limit, and then succeeded.
        * Root in the container rebooted the container.

        If the limit cannot be set, only log the error; the next call tries again.
        """
        path = self._folder / domain / WANTED_LIMIT
        record = path.with_name(LIMITED_START)
        try:
            if path.exists():
                former = record.read_text() if record.exists() else ""
                started = self._groups.limit_started(domain, int(path.read_text()), former)
                if started != former:
                    write_durably(record, started.encode(), sync_folder=False)
        except (OSError, ValueError) as error:
            log.warning("limit_not_set", domain=domain, limit="pids", error=error)

    def ensure_none(self, domain: str) -> None:
        """Remove a guest's files, root, logs, control group and libvirt's folders. Each of these may be absent.

        Raise Refused if something cannot be removed.
        """
        try:
            with refuse_os_errors(f"remove the files of the guest {domain}"):
                self._remove(domain)
        finally:
            self._progress()

    def _remove(self, domain: str) -> None:
        for driver in DRIVERS:
            _remove_logs(LIBVIRT_LOGS / driver, domain)
        _remove_container_remains(domain)
        _remove_logs(self._folder, domain)  # logs of earlier versions of the agent
        if (self._folder / domain).exists():
            self._groups.ensure_none(domain)
            self._roots.ensure_none(domain)
            shutil.rmtree(self._folder / domain)
            log.info("guest_files_removed", domain=domain)

    def ensure_none_of_cluster(self, cluster: str, kept: Iterable[str] = ()) -> None:
        """Remove the files of a cluster's guests, except the files of the domains in ``kept``."""
        self._ensure_none_of(self.list_domains(names.domain_name_patterns(cluster)) - set(kept))

    def ensure_none_but(self, domains: Iterable[str]) -> None:
        """Remove the files of all guests except ``domains``."""
        self._ensure_none_of(self.list_domains() - set(domains))

    def _ensure_none_of(self, domains: set[str]) -> None:
        """Remove the files of these guests. After an error, remove the other guests' files, then raise Refused."""
        failures: list[Refused] = []
        for domain in sorted(domains):
            try:
                self.ensure_none(domain)
            except Refused as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def list_domains(self, patterns: Iterable[str] = ("*",)) -> set[str]:
        """Return the domains that match a pattern and have a folder or a log in the folder of guests.

        Only earlier versions of the agent wrote logs in this folder.
        """
        paths = (path for pattern in patterns for path in self._folder.glob(pattern))
        return {path.name if path.is_dir() else path.name.partition(".log")[0] for path in paths}


def _remove_logs(folder: Path, domain: str) -> None:
    for path in (folder / f"{domain}.log", *folder.glob(f"{domain}.log.*")):
        path.unlink(missing_ok=True)


def _remove_container_remains(domain: str) -> None:
    """Remove a container's empty folders and socket, which libvirt does not remove.

    libvirt never removes the folders. The socket remains if the container ended while libvirtd did not run.
    """
    with suppress(OSError):
        (LIBVIRT_LXC / f"{domain}.sock").unlink(missing_ok=True)
    for suffix in CONTAINER_FOLDERS:
        with suppress(OSError):  # absent, or a later version of libvirt uses the folder for other purposes
            (LIBVIRT_LXC / f"{domain}.{suffix}").rmdir()
