"""The dnsmasq servers of this host: one process for each cluster, each in a separate network namespace.

For a metadata service, a second process runs in the same namespace (`metadata_processes`).

A veth pair connects the namespace to the cluster's bridge. The pair's end on the bridge has the cluster's ownership
alias. The namespace has no name: the kernel removes the namespace and the veth pair when the last process ends. Servers
continue while the agent restarts.

The folder ``<state>/servers/<cluster ID>`` contains the server's files and a record of the process. The record is valid
for one boot. Only root can write to the folder, so a guest that controls the server cannot change these files. Before
the agent signals a process, the agent opens a descriptor of the process (pidfd_open(2)) and then checks the process's
command line.
"""

import os
import pwd
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.host_services import dnsmasq_program
from virtcloud.agent.host_services.dnsmasq_config import (
    CONFIG,
    DEVICE,
    FILE_OPTIONS,
    MAC,
    NAMES,
    DnsmasqFiles,
    render_dnsmasq,
)
from virtcloud.agent.host_services.guest_identity import render_rules
from virtcloud.agent.host_services.metadata_processes import MetadataProcesses
from virtcloud.agent.host_services.server_difference import (
    ObservedServer,
    ServeGuests,
    StopServing,
    find_bridge,
    find_port,
    find_port_faults,
    list_uplink_ports,
)
from virtcloud.agent.host_services.server_processes import RecordedProcess, ServerLaunch, read_record, write_record
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import BOOT_ID, KernelInterface
from virtcloud.agent.own_processes import kill_processes, list_own_processes, open_processes, read_start_time
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

USER: Final = "dnsmasq"
"""The user of the servers, created by Debian's and Red Hat's packages of dnsmasq."""
REMEDY: Final = "apt-get install dnsmasq-base (Debian), dnf install dnsmasq (RHEL)"
SEARCH_PATH: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/sbin"
RECORD: Final = "record.json"
NO_RECORD: Final = ("the server's record is missing",)
FOLDER_MODE, FILE_MODE = 0o750, 0o640


class ServerPortKernel(Protocol):
    """The operations of the kernel on a server's port."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair with ``peer`` in the network namespace of a process. Return the index of ``name``."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``master`` or ``up`` of an interface."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def isolate(self, index: int) -> None:
        """Isolate a bridge's port: a bridge forwards no frames between isolated ports."""

    def delete(self, index: int) -> None:
        """Delete an interface. Do nothing if the interface is absent."""


class ServerRecord(RecordedProcess):
    """The record of a server's process. Digests of files are "" until dnsmasq has read the files."""

    cluster: str
    vlan: int
    config: str = ""
    names: str = ""


class DnsmasqServers:
    """The servers of this host. All operations are idempotent."""

    def __init__(
        self, kernel: ServerPortKernel, folder: Path, boot: str | None = None, *, has_filters: bool = True
    ) -> None:
        """Create an object that stores the servers' files in ``folder``, which `ensure_server` creates if missing.

        ``has_filters`` states whether the agent filters the frames of guests.
        """
        self._kernel = kernel
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()
        self._metadata = MetadataProcesses(folder, self._boot, has_filters=has_filters)

    def read(self, interfaces: Sequence[KernelInterface]) -> tuple[ObservedServer, ...]:
        """Return the servers that have a folder, or a port in ``interfaces``, with their faults."""
        folders = self._list_folders()
        records = [record for folder in folders if (record := self._read_record(folder)) is not None]
        found = {(record.cluster, record.vlan): self._observe(record, interfaces) for record in records}
        for interface in interfaces:
            vlan, cluster = names.vlan_of_server_port(interface.name), names.cluster_of_alias(interface.alias)
            if vlan is not None and cluster and (cluster, vlan) not in found:
                found[cluster, vlan] = ObservedServer(cluster, vlan, faults=NO_RECORD)
        known = {cluster for cluster, _ in found}
        remains = [ObservedServer(path.name, None, faults=NO_RECORD) for path in folders if path.name not in known]
        return (*(found[key] for key in sorted(found)), *remains)

    def apply(self, step: ServeGuests | StopServing) -> None:
        """Apply one step. Idempotent. Raise the errors of `ensure_server` and `ensure_no_server`."""
        if isinstance(step, ServeGuests):
            self.ensure_server(step.segment)
        else:
            self.ensure_no_server(step.cluster)

    def ensure_server(self, segment: Segment) -> None:
        """Start the server of a segment's guests, or replace a server that has another configuration.

        If a server with the wanted configuration runs, correct its port and its list of guests' names.

        Raise Refused if dnsmasq or the segment's bridge is missing, or if dnsmasq or the kernel refuses the start. Also
        raise Refused if this host cannot identify guests for a metadata service.
        """
        self._metadata.check(segment)
        files, folder = render_dnsmasq(segment), self._folder / segment.id
        interfaces = self._kernel.list_interfaces()
        bridge = find_bridge(segment, interfaces)
        for uplink in list_uplink_ports(bridge, interfaces):
            self._kernel.isolate(uplink.index)
        record = self._read_record(folder)
        port = find_port(segment.id, segment.vlan, interfaces)
        if record is None or port is None or not self._is_current(record, segment, files):
            self._remove_server(segment.id, interfaces)
            with refuse_os_errors(f"write the files of dnsmasq to {folder}"):
                _write_files(folder, files, _find_user())
            record = self._start(segment, files, bridge)
        else:
            self._attach(port.index, bridge)
            if record.names != files.names_digest:
                self._reload(record, files, folder)
        self._metadata.ensure(segment, record, _find_user())

    def ensure_no_server(self, cluster: str) -> None:
        """Remove a cluster's server: its port, process, namespace and files. Each of these may be absent.

        Raise Refused if the files cannot be removed.
        """
        self._remove_server(cluster, self._kernel.list_interfaces())
        with refuse_os_errors(f"remove the files of dnsmasq in {self._folder / cluster}"), suppress(FileNotFoundError):
            shutil.rmtree(self._folder / cluster)

    def _observe(self, record: ServerRecord, interfaces: Iterable[KernelInterface]) -> ObservedServer:
        ended = () if record.is_running(self._boot) else ("dnsmasq has ended",)
        documents, metadata_faults = self._metadata.read(record.cluster)
        faults = (*ended, *metadata_faults, *find_port_faults(record.cluster, record.vlan, interfaces))
        return ObservedServer(record.cluster, record.vlan, record.config, record.names, faults, documents)

    def _is_current(self, record: ServerRecord, segment: Segment, files: DnsmasqFiles) -> bool:
        same = (record.cluster, record.vlan, record.config) == (segment.id, segment.vlan, files.config_digest)
        return same and record.is_running(self._boot)

    def _start(self, segment: Segment, files: DnsmasqFiles, bridge: KernelInterface) -> ServerRecord:
        folder, user = self._folder / segment.id, _find_user()
        argv = [_find_dnsmasq(), "--keep-in-foreground", *_file_arguments(folder)]
        launch = ServerLaunch("dnsmasq", dnsmasq_program.__name__, argv[2])
        try:
            pid = launch.wait_for_namespace()
            record = ServerRecord(
                cluster=segment.id, vlan=segment.vlan, pid=pid, started=read_start_time(pid) or 0, boot=self._boot
            )
            self._write_record(record)
            self._add_port(segment, bridge, pid)
            spec = {"device": DEVICE, "addresses": files.addresses, "argv": argv}
            identity = {"neighbours": files.neighbours, "rules": render_rules(files.neighbours)}
            launch.configure({**spec, **identity, "uid": user.pw_uid, "gid": user.pw_gid})
        except BaseException:
            launch.close()
            self._remove_server(segment.id, self._kernel.list_interfaces())
            raise
        launch.close()
        if not record.is_running(self._boot):
            raise Refused("cannot start dnsmasq: it ended without an error message")
        digests = {"config": files.config_digest, "names": files.names_digest}
        record = record.model_copy(update=digests)
        self._write_record(record)
        log.info("server_started", cluster=segment.key, vlan=segment.vlan, pid=pid)
        return record

    def _add_port(self, segment: Segment, bridge: KernelInterface, pid: int) -> None:
        """Create the server's port. Set the port's alias before the port is attached."""
        temporary, name = names.temporary_server_port_name(segment.vlan), names.server_port_name(segment.vlan)
        index = self._kernel.add_veth_pair(temporary, DEVICE, pid, bridge.mtu, MAC)
        self._kernel.change(index, name=name, alias=names.ownership_alias(segment.id))
        self._kernel.disable_host_ip(index, name)
        self._attach(index, bridge)

    def _attach(self, index: int, bridge: KernelInterface) -> None:
        """Attach the port to the bridge. The port is isolated before it is up, so that no frame leaves the host."""
        interfaces = {interface.index: interface for interface in self._kernel.list_interfaces()}
        if interfaces[index].master != bridge.index:
            self._kernel.change(index, up=False)
            self._kernel.change(index, master=bridge.index)
        self._kernel.isolate(index)
        self._kernel.change(index, up=True)

    def _reload(self, record: ServerRecord, files: DnsmasqFiles, folder: Path) -> None:
        """Make a server read changed names. Write the record last: a restarted agent repeats an interrupted reload."""
        with refuse_os_errors(f"write the names of guests to {folder}"):
            _write_file(folder / NAMES, files.names, _find_user().pw_gid)
        for descriptor in open_processes(_file_arguments(folder)[0], (record.pid,)):
            with suppress(ProcessLookupError):  # dnsmasq has just ended
                signal.pidfd_send_signal(descriptor, signal.SIGHUP)
        self._write_record(record.model_copy(update={"names": files.names_digest}))

    def _remove_server(self, cluster: str, interfaces: Iterable[KernelInterface]) -> None:
        """Remove a cluster's server ports and processes.

        Do not delete a port without an alias: the kernel removes the port when the server's processes end.
        """
        for interface in interfaces:
            is_server_port = names.vlan_of_server_port(interface.name) is not None
            if is_server_port and names.cluster_of_alias(interface.alias) == cluster:
                self._kernel.delete(interface.index)
        self._metadata.remove(cluster)
        record = self._read_record(self._folder / cluster)
        recorded = {record.pid} if record is not None and record.is_running(self._boot) else set()
        kill_processes(_file_arguments(self._folder / cluster)[0], recorded | list_own_processes())

    def _list_folders(self) -> list[Path]:
        with refuse_os_errors(f"read the records of {self._folder}"):
            return sorted(self._folder.iterdir()) if self._folder.exists() else []

    def _read_record(self, folder: Path) -> ServerRecord | None:
        return read_record(folder / RECORD, ServerRecord)

    def _write_record(self, record: ServerRecord) -> None:
        write_record(self._folder / record.cluster / RECORD, record)


def describe_dnsmasq() -> str:
    """Return a text with the path of dnsmasq and its user. Raise Refused with a remedy if either is missing."""
    return f"{_find_dnsmasq()}, user {_find_user().pw_name}"


def _find_dnsmasq() -> str:
    path = shutil.which("dnsmasq", path=SEARCH_PATH)
    if path is None:
        raise Refused(f"host_services need the program dnsmasq, which is not installed: {REMEDY}")
    return path


def _find_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise Refused(f"this host has no user {USER}, as which dnsmasq runs: {REMEDY}") from error


def _file_arguments(folder: Path) -> list[str]:
    """Return dnsmasq's arguments with the paths of a server's files. The first argument identifies the process."""
    return [f"{option}={folder / name}" for name, option in FILE_OPTIONS.items()]


def _write_files(folder: Path, files: DnsmasqFiles, user: pwd.struct_passwd) -> None:
    """Write the files. The group of dnsmasq's user can read the files, and only root can change them."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, 0, user.pw_gid)
    folder.chmod(FOLDER_MODE)
    for name, text in ((CONFIG, files.config), (NAMES, files.names)):
        _write_file(folder / name, text, user.pw_gid)


def _write_file(path: Path, text: str, group: int) -> None:
    """Replace a file atomically, so that the server never reads an incomplete file."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.chown(new, 0, group)
    new.chmod(FILE_MODE)
    new.rename(path)
