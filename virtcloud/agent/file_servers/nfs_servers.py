"""The file servers of this gateway: one process of NFS-Ganesha for each network with the service ``nfs``.

The server of a network runs in the network's namespace, so networks with identical addresses do not conflict. The
server continues while the agent restarts. The folder ``<state>/nfs/<cluster ID>`` contains a record of the server's
process.
"""

import os
import pwd
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.file_servers import ganesha_program
from virtcloud.agent.file_servers.ganesha_config import OwnerAccount, digest_server, render_ganesha
from virtcloud.agent.file_servers.nfs_difference import FileServerStep, ObservedFileServer, ServeFiles
from virtcloud.agent.file_servers.nfs_probe import NfsProbe
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.host_services.server_processes import (
    RecordedProcess,
    ServerLaunch,
    read_record,
    write_record,
)
from virtcloud.agent.network.interfaces import BOOT_ID
from virtcloud.agent.own_processes import (
    kill_processes,
    list_network_processes,
    list_own_processes,
    read_start_time,
)
from virtcloud.model.errors import NotFound, Refused
from virtcloud.model.nfs import NfsServer
from virtcloud.model.wanted import Segment

PROGRAM: Final = "ganesha.nfsd"
SEARCH_PATH: Final = "/usr/sbin:/usr/bin"
REMEDY: Final = "apt-get install nfs-ganesha nfs-ganesha-vfs (Debian)"
READY: Final = b"NFS SERVER INITIALIZED"
FATAL: Final = (":FATAL :", ":CRIT :")
NO_EXPORT: Final = "Could not create export"
RECORD, ROOT = "record.json", "root"
MIN_UID: Final = 1000
"""The lowest user ID of people's accounts (login.defs(5)); lower IDs belong to the system."""

OpenNamespace = Callable[[str], AbstractContextManager[int]]
"""A function that takes a network's ID, and opens the namespace that this gateway has for the network."""


class FileServerRecord(RecordedProcess):
    """The record of a server's process.

    ``wanted`` is the wanted state (`NfsServer`, as JSON) with which the server was started. ``digest`` is the digest of
    ``wanted`` and of the owner's account. Until the server has started, ``wanted`` and ``digest`` are "".
    """

    cluster: str
    wanted: str = ""
    digest: str = ""


class NfsServers:
    """The file servers of this gateway. All operations are idempotent."""

    def __init__(self, open_namespace: OpenNamespace, folder: Path, probe: NfsProbe | None = None) -> None:
        """Create an object with records in ``folder``."""
        self._open_namespace = open_namespace
        self._folder = folder
        self._boot = BOOT_ID.read_text().strip()
        self._probe = probe or NfsProbe(open_namespace)

    def read(self) -> tuple[ObservedFileServer, ...]:
        """Return the servers that have a folder, with their faults."""
        with refuse_os_errors(f"read the records of {self._folder}"):
            names = sorted(path.name for path in self._folder.iterdir()) if self._folder.exists() else []
        observed = [self._observe(name) for name in names]
        hanging = self._probe.find_hanging([one.cluster for one in observed if not one.faults])
        return tuple(
            replace(one, faults=("the server does not answer",)) if one.cluster in hanging else one for one in observed
        )

    def apply(self, step: FileServerStep) -> None:
        """Apply one step."""
        if isinstance(step, ServeFiles):
            self.ensure_server(step.segment)
        else:
            self.ensure_no_server(step.cluster)

    def ensure_server(self, segment: Segment) -> None:
        """Start the server of a network. Stop a running server of this network first.

        Raise Refused if the server cannot be started. Raise NotFound if this gateway has no namespace of the network.
        """
        if segment.nfs is None:
            raise Refused(f"cluster {segment.key} has no file server")
        program, account = find_ganesha(), find_owner_account(segment.nfs)
        self._stop(segment.id)
        with refuse_os_errors(f"create the folder {self._path(segment.id)}"):
            (self._path(segment.id) / ROOT).mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._opened_namespace(segment) as namespace:
            record = self._start(segment, segment.nfs, program, account, namespace)
        log.info("file_server_started", cluster=segment.key, vlan=segment.vlan, pid=record.pid)

    def ensure_no_server(self, cluster: str) -> None:
        """Stop the server of a network if it runs, and remove the folder with the server's record."""
        self._stop(cluster)
        with refuse_os_errors(f"remove {self._path(cluster)}"), suppress(FileNotFoundError):
            shutil.rmtree(self._path(cluster))

    def _start(
        self, segment: Segment, server: NfsServer, program: str, account: OwnerAccount, namespace: int
    ) -> FileServerRecord:
        config = _config_path(segment.id)
        launch = ServerLaunch("NFS-Ganesha", ganesha_program.__name__, config, (namespace,))
        try:
            pid = launch.wait_for_namespace()
            started = read_start_time(pid) or 0
            record = FileServerRecord(cluster=segment.id, pid=pid, started=started, boot=self._boot)
            self._write_record(record)
            output = launch.configure(
                {
                    "namespace": namespace,
                    "root": str(self._path(segment.id) / ROOT),
                    "exports": [export.model_dump(mode="json") for export in server.exports],
                    "read_only": [export.name for export in server.exports if export.read_only],
                    "config": config,
                    "text": render_ganesha(server, account),
                    "uid": account.uid,
                    "gid": account.gid,
                    "argv": [program, "-F", "-L", "STDOUT", "-f", config, "-p", "/recovery/pid"],
                },
                READY,
            )
            _check_exports(output, server)
        except Refused as error:
            self._stop(segment.id)
            raise Refused(_shorten_error(str(error))) from error
        finally:
            launch.close()
        done = record.model_copy(update={"wanted": server.model_dump_json(), "digest": digest_server(server, account)})
        self._write_record(done)
        return done

    def _observe(self, cluster: str) -> ObservedFileServer:
        record = read_record(self._path(cluster) / RECORD, FileServerRecord)
        if record is None:
            return ObservedFileServer(cluster, faults=("the server's record is missing",))
        return ObservedFileServer(cluster, record.wanted, tuple(self._find_faults(record)))

    def _find_faults(self, record: FileServerRecord) -> list[str]:
        if not record.is_running(self._boot):
            return ["Ganesha has ended"]
        if not record.wanted:
            return ["the server's start was interrupted"]
        faults = [] if self._is_in_namespace(record) else ["the server is in a former network namespace"]
        try:
            server = NfsServer.model_validate_json(record.wanted)
        except ValidationError:
            return [*faults, "another version of the agent started the server"]
        with suppress(Refused):  # if the account is missing, the server continues with the former IDs
            if digest_server(server, find_owner_account(server)) != record.digest:
                faults.append(f"the account of {server.owner} has other IDs")
        return faults

    def _is_in_namespace(self, record: FileServerRecord) -> bool:
        try:
            with self._open_namespace(record.cluster) as namespace:
                return os.fstat(namespace).st_ino == Path(f"/proc/{record.pid}/ns/net").stat().st_ino
        except (NotFound, OSError):
            return False

    def _opened_namespace(self, segment: Segment) -> AbstractContextManager[int]:
        return self._open_namespace(segment.id)

    def _stop(self, cluster: str) -> None:
        """Kill the server process of a network, and any other process that has the server's `_config_path` as argument.

        The server has a mount namespace of its own, so `list_own_processes` does not find the server. The network
        namespace contains the server even if the record is missing or unreadable.
        """
        record = read_record(self._path(cluster) / RECORD, FileServerRecord)
        pids = {record.pid} if record is not None and record.is_running(self._boot) else set()
        with suppress(NotFound), self._open_namespace(cluster) as namespace:
            pids |= list_network_processes(namespace)
        kill_processes(_config_path(cluster), pids | list_own_processes())

    def _path(self, cluster: str) -> Path:
        return self._folder / cluster

    def _write_record(self, record: FileServerRecord) -> None:
        write_record(self._path(record.cluster) / RECORD, record)


def find_owner_account(server: NfsServer) -> OwnerAccount:
    """Return the owner's account. Raise Refused if the account is missing or a system account."""
    try:
        account = pwd.getpwnam(server.owner)
    except KeyError as error:
        raise Refused(
            f"expected an account {server.owner} on this gateway, found none; the gateway serves files with this "
            "account's rights: add the account, or connect the gateway to the site's directory of users"
        ) from error
    if account.pw_uid < MIN_UID or account.pw_gid < 1:
        raise Refused(
            f"expected an account of a person (user ID {MIN_UID} or higher), got {server.owner} with user ID "
            f"{account.pw_uid}: files of the system are not served"
        )
    return OwnerAccount(account.pw_name, account.pw_uid, account.pw_gid)


def find_ganesha() -> str:
    """Return the path of Ganesha. Raise Refused with a remedy if Ganesha is not installed."""
    path = shutil.which(PROGRAM, path=SEARCH_PATH)
    if path is None:
        raise Refused(f"the service nfs needs the program {PROGRAM}, which is not installed: {REMEDY}")
    return path


def _config_path(cluster: str) -> str:
    """Return the argument by which the agent finds the server's process."""
    return f"/nfs-{cluster}.conf"


def _check_exports(output: str, server: NfsServer) -> None:
    if NO_EXPORT in output:
        folders = ", ".join(export.folder for export in server.exports)
        raise Refused(f"expected NFS-Ganesha to export {folders}, got this output: {output}")


def _shorten_error(text: str) -> str:
    fatal = [line for line in text.splitlines() if any(level in line for level in FATAL)]
    if not fatal:
        return text
    return f"cannot start NFS-Ganesha: {fatal[-1].rpartition(' :')[2] or fatal[-1]}"
