"""The metadata services of this host: one process for each cluster, in the network namespace of the cluster's dnsmasq.

The documents that a process serves contain private keys. The agent therefore sends the documents through a pipe, and
the process stores them only in memory. When the documents change, the agent starts a new process. The folder
``<state>/servers/<cluster ID>`` contains a record of the process, with a digest of the documents.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.host_services import guest_identity, metadata_program
from virtcloud.agent.host_services.metadata_documents import has_metadata, hash_metadata, render_metadata
from virtcloud.agent.host_services.server_processes import (
    RecordedProcess,
    ServerLaunch,
    read_record,
    write_record,
)
from virtcloud.agent.own_processes import kill_processes, list_own_processes, read_start_time
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

RECORD: Final = "metadata.json"


class MetadataRecord(RecordedProcess):
    """The record of a process. ``documents`` is the digest of the served documents, or "" while the process starts."""

    documents: str = ""


class MetadataProcesses:
    """The metadata services of this host. All operations are idempotent."""

    def __init__(self, folder: Path, boot: str, *, has_filters: bool) -> None:
        """Create an object with records in ``folder``.

        ``has_filters`` states whether the agent filters the frames of guests.
        """
        self._folder = folder
        self._boot = boot
        self._has_filters = has_filters

    def read(self, cluster: str) -> tuple[str, tuple[str, ...]]:
        """Return the digest of the documents that a cluster's process serves, and the process's faults.

        Without a record, return ``("", ())``.
        """
        record = self._read_record(cluster)
        if record is None:
            return "", ()
        return record.documents, () if record.is_running(self._boot) else ("the metadata service has ended",)

    def check(self, segment: Segment) -> None:
        """Raise Refused if the segment needs a metadata service, but the host does not check guests' MAC addresses."""
        if has_metadata(segment) and not self._has_filters:
            raise Refused(
                "a metadata service needs the filters of guests, which the settings of this host's agent turn off: set "
                'filters = "strict" under [guests], or create the cluster without metadata'
            )

    def ensure(self, segment: Segment, server: RecordedProcess, user: pwd.struct_passwd) -> None:
        """Start the segment's metadata service in the network namespace of ``server``.

        Raise Refused if the start fails.

        A service with the segment's documents is left unchanged. A service with other documents is stopped first. If
        the segment needs no service, only stop a running service.
        """
        record, wanted = self._read_record(segment.id), hash_metadata(segment)
        if record is not None and record.documents == wanted and record.is_running(self._boot):
            return
        self.remove(segment.id)
        if wanted:
            try:
                self._start(segment, server, user)
            except BaseException:
                self.remove(segment.id)
                raise

    def remove(self, cluster: str) -> None:
        """Kill the process of a cluster if the process runs, and remove the process's record."""
        kill_processes(self._argument(cluster), list_own_processes())
        with refuse_os_errors(f"remove the record of cluster {cluster}"), suppress(FileNotFoundError):
            (self._folder / cluster / RECORD).unlink()

    def _start(self, segment: Segment, server: RecordedProcess, user: pwd.struct_passwd) -> None:
        documents = render_metadata(segment)
        with self._opened_namespace(server) as namespace:
            launch = ServerLaunch(
                "the metadata service", metadata_program.__name__, self._argument(segment.id), (namespace,)
            )
            try:
                pid = launch.wait_for_namespace()
                record = MetadataRecord(pid=pid, started=read_start_time(pid) or 0, boot=self._boot)
                self._write_record(segment.id, record)
                launch.configure(
                    {
                        "namespace": namespace,
                        "port": guest_identity.PORT,
                        "uid": user.pw_uid,
                        "gid": user.pw_gid,
                        "guests": documents.guests,
                        "addresses": documents.addresses,
                    }
                )
            finally:
                launch.close()
        if not record.is_running(self._boot):
            raise Refused("cannot start the metadata service: it ended without an error message")
        self._write_record(segment.id, record.model_copy(update={"documents": hash_metadata(segment)}))
        log.info("metadata_started", cluster=segment.key, vlan=segment.vlan, pid=pid)

    @contextmanager
    def _opened_namespace(self, server: RecordedProcess) -> Iterator[int]:
        """Yield a descriptor of the network namespace of a process. Raise Refused if the process has ended.

        Check the process after the descriptor was opened. Before, the process could still end, and its ID could pass to
        another process.
        """
        with refuse_os_errors("open the network namespace of dnsmasq"):
            descriptor = os.open(f"/proc/{server.pid}/ns/net", os.O_RDONLY)
        try:
            if not server.is_running(self._boot):
                raise Refused("cannot start the metadata service: dnsmasq of this cluster has ended")
            yield descriptor
        finally:
            os.close(descriptor)

    def _argument(self, cluster: str) -> str:
        return f"--metadata-of={self._folder / cluster}"

    def _read_record(self, cluster: str) -> MetadataRecord | None:
        return read_record(self._folder / cluster / RECORD, MetadataRecord)

    def _write_record(self, cluster: str, record: MetadataRecord) -> None:
        write_record(self._folder / cluster / RECORD, record)
