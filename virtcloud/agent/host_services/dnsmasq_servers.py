"""The dnsmasq servers of this host: one process for each cluster, each in a network namespace of its own.

A veth pair connects the namespace to the cluster's bridge. The port on the bridge has the cluster's ownership alias.
The namespace has no name. It ends with the process, and the port ends with the namespace. Servers continue while the
agent restarts.

The folder ``<state>/servers/<cluster id>`` has the server's files, and a record of the process. Only root can write the
folder, so a server that a guest took over cannot change what the agent writes. A record is valid for one boot. The
agent signals a process only through a descriptor (pidfd_open(2)) whose command line it has checked afterwards.
"""

import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
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
from virtcloud.agent.host_services.server_difference import (
    ObservedServer,
    ServeGuests,
    StopServing,
    find_port_faults,
    list_uplink_ports,
)
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import BOOT_ID, KernelInterface
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

USER: Final = "dnsmasq"
"""The user of the servers. Debian's and Red Hat's packages of dnsmasq create this user."""
REMEDY: Final = "apt-get install dnsmasq-base (Debian), dnf install dnsmasq (RHEL)"
SEARCH_PATH: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/sbin"
RECORD: Final = "record.json"
START_S, END_S = 20.0, 5.0
"""Time limits in seconds for the start and the end of a server."""
FOLDER_MODE, FILE_MODE = 0o750, 0o640
_STATE, _START_TIME = 0, 19
"""The positions of fields of /proc/PID/stat behind the name of the program (proc(5))."""


class ServerPortKernel(Protocol):
    """The operations of the kernel that a server's port needs."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair with ``peer`` in the network namespace of a process. Return the index of ``name``."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``master`` or ``up`` of an interface."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def isolate(self, index: int) -> None:
        """Isolate a bridge's port. A bridge forwards no frames between isolated ports."""

    def delete(self, index: int) -> None:
        """Delete an interface. An absent interface is success."""


class ServerRecord(Document):
    """A server's process, and the digests of the files that it has read. ``started`` and ``boot`` identify the process.

    The digests are empty while the server starts.
    """

    cluster: str
    vlan: int
    pid: int
    started: int
    boot: str
    config: str = ""
    names: str = ""


class DnsmasqServers:
    """The servers of all clusters of this host. All operations are idempotent."""

    def __init__(self, kernel: ServerPortKernel, folder: Path, boot: str | None = None) -> None:
        """Store the servers' files in ``folder``, which the first server creates."""
        self._kernel = kernel
        self._folder = folder
        self._boot = boot or BOOT_ID.read_text().strip()

    def read(self, interfaces: Sequence[KernelInterface]) -> tuple[ObservedServer, ...]:
        """Return the servers that have a record, or a port among the host's interfaces."""
        records = self._list_records()
        found = {(record.cluster, record.vlan): self._observe(record, interfaces) for record in records}
        for interface in interfaces:
            vlan, cluster = names.vlan_of_server_port(interface.name), names.cluster_of_alias(interface.alias)
            if vlan is not None and cluster and (cluster, vlan) not in found:
                found[cluster, vlan] = ObservedServer(cluster, vlan, faults=("its record is missing",))
        return tuple(found[key] for key in sorted(found))

    def apply(self, step: ServeGuests | StopServing) -> None:
        """Apply one step. Idempotent. The errors are those of `ensure_server` and `ensure_no_server`."""
        if isinstance(step, ServeGuests):
            self.ensure_server(step.segment)
        else:
            self.ensure_no_server(step.cluster)

    def ensure_server(self, segment: Segment) -> None:
        """Start the server of a segment's guests, or correct its faults and its names.

        Raise Refused if the segment's bridge or dnsmasq is missing, or if dnsmasq or the kernel refuses the start.
        """
        files, folder = render_dnsmasq(segment), self._folder / segment.id
        interfaces = self._kernel.list_interfaces()
        bridge = _find_bridge(segment, interfaces)
        for uplink in list_uplink_ports(bridge, interfaces):
            self._kernel.isolate(uplink.index)
        record = self._read_record(folder)
        port = _find_port(segment.id, segment.vlan, interfaces)
        if record is None or port is None or not self._is_current(record, segment, files):
            self._remove_server(segment.id, interfaces)
            with refuse_os_errors(f"write the files of dnsmasq to {folder}"):
                _write_files(folder, files, _find_user())
            self._start(segment, files, bridge)
            return
        self._attach(port.index, bridge)
        if record.names != files.names_digest:
            self._reload(record, files, folder)

    def ensure_no_server(self, cluster: str) -> None:
        """Remove a cluster's server: its port, process, namespace and files. An absent server is success."""
        self._remove_server(cluster, self._kernel.list_interfaces())
        with refuse_os_errors(f"remove the files of dnsmasq in {self._folder / cluster}"), suppress(FileNotFoundError):
            shutil.rmtree(self._folder / cluster)

    def _observe(self, record: ServerRecord, interfaces: Iterable[KernelInterface]) -> ObservedServer:
        ended = () if self._is_running(record) else ("dnsmasq has ended",)
        faults = (*ended, *find_port_faults(record.cluster, record.vlan, interfaces))
        return ObservedServer(record.cluster, record.vlan, record.config, record.names, faults)

    def _is_current(self, record: ServerRecord, segment: Segment, files: DnsmasqFiles) -> bool:
        """Return whether the recorded process runs with these settings, and only its names may be outdated."""
        same = (record.cluster, record.vlan, record.config) == (segment.id, segment.vlan, files.config_digest)
        return same and self._is_running(record)

    def _is_running(self, record: ServerRecord) -> bool:
        return record.boot == self._boot and _read_start_time(record.pid) == record.started

    def _start(self, segment: Segment, files: DnsmasqFiles, bridge: KernelInterface) -> None:
        folder, user = self._folder / segment.id, _find_user()
        argv = [_find_dnsmasq(), "--keep-in-foreground", *_file_arguments(folder)]
        launch = _Launch(argv[2])
        try:
            pid = launch.wait_for_namespace()
            record = ServerRecord(
                cluster=segment.id, vlan=segment.vlan, pid=pid, started=_read_start_time(pid) or 0, boot=self._boot
            )
            self._write_record(record)
            self._add_port(segment, bridge, pid)
            spec = {"device": DEVICE, "addresses": files.addresses, "argv": argv}
            launch.configure({**spec, "uid": user.pw_uid, "gid": user.pw_gid})
        except BaseException:
            launch.close()
            self._remove_server(segment.id, self._kernel.list_interfaces())
            raise
        launch.close()
        if not self._is_running(record):
            raise Refused("cannot start dnsmasq: it ended without an error message")
        digests = {"config": files.config_digest, "names": files.names_digest}
        self._write_record(record.model_copy(update=digests))
        log.info("server_started", cluster=segment.key, vlan=segment.vlan, pid=pid)

    def _add_port(self, segment: Segment, bridge: KernelInterface, pid: int) -> None:
        """Create the veth pair. The port has an ownership alias before it is attached to the bridge."""
        temporary, name = names.temporary_server_port_name(segment.vlan), names.server_port_name(segment.vlan)
        index = self._kernel.add_veth_pair(temporary, DEVICE, pid, bridge.mtu, MAC)
        self._kernel.change(index, name=name, alias=names.ownership_alias(segment.id))
        self._kernel.disable_host_ip(index, name)
        self._attach(index, bridge)

    def _attach(self, index: int, bridge: KernelInterface) -> None:
        """Attach a port to the bridge. It is down until it is isolated, so that no frame leaves the host."""
        interfaces = {interface.index: interface for interface in self._kernel.list_interfaces()}
        if interfaces[index].master != bridge.index:
            self._kernel.change(index, up=False)
            self._kernel.change(index, master=bridge.index)
        self._kernel.isolate(index)
        self._kernel.change(index, up=True)

    def _reload(self, record: ServerRecord, files: DnsmasqFiles, folder: Path) -> None:
        """Write the names, and let dnsmasq read them again. The record is written last.

        So if the agent is killed in between, the next agent repeats both steps.
        """
        with refuse_os_errors(f"write the names of guests to {folder}"):
            _write_file(folder / NAMES, files.names, _find_user().pw_gid)
        for descriptor in _open_processes(folder, (record.pid,)):
            signal.pidfd_send_signal(descriptor, signal.SIGHUP)
        self._write_record(record.model_copy(update={"names": files.names_digest}))

    def _remove_server(self, cluster: str, interfaces: Iterable[KernelInterface]) -> None:
        """Remove a cluster's ports and processes. A port that has no alias yet disappears with its process."""
        for interface in interfaces:
            is_server_port = names.vlan_of_server_port(interface.name) is not None
            if is_server_port and names.cluster_of_alias(interface.alias) == cluster:
                self._kernel.delete(interface.index)
        record = self._read_record(self._folder / cluster)
        recorded = {record.pid} if record is not None and self._is_running(record) else set()
        _kill_processes(self._folder / cluster, recorded | _list_own_processes())

    def _list_records(self) -> list[ServerRecord]:
        with refuse_os_errors(f"read the records of {self._folder}"):
            folders = sorted(self._folder.iterdir()) if self._folder.exists() else []
        return [record for folder in folders if (record := self._read_record(folder)) is not None]

    def _read_record(self, folder: Path) -> ServerRecord | None:
        """Return a server's record. Return None if there is no readable record."""
        path = folder / RECORD
        try:
            return ServerRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("server_record_unreadable", file=path, error=error)
            return None

    def _write_record(self, record: ServerRecord) -> None:
        with refuse_os_errors(f"record the server of cluster {record.cluster}"):
            write_durably(self._folder / record.cluster / RECORD, record.model_dump_json().encode())


class _Launch:
    """The start of a server by `dnsmasq_program`. The program's argument is the one by which the server is found."""

    def __init__(self, argument: str) -> None:
        argv = [sys.executable, "-I", "-S", dnsmasq_program.__file__, argument]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a file of this package
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise Refused(f"cannot start dnsmasq: {error.strerror}") from error

    def wait_for_namespace(self) -> int:
        """Wait until the program has created its namespace. Return its process ID. Raise Refused if it fails."""
        line = self._read(until_end=False)
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(f"cannot start dnsmasq: expected 'apart' and a process ID, got {line!r}")
        return int(pid)

    def configure(self, spec: dict[str, Any]) -> None:
        """Send the specification. Wait until dnsmasq is ready. Raise Refused with the error if it fails."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # the program ended; its error follows
                self._process.stdin.write(json.dumps(spec).encode() + b"\n")
                self._process.stdin.flush()
        if error := self._read(until_end=True):
            raise Refused(f"cannot start dnsmasq: {error}")

    def close(self) -> None:
        """Close the pipes. A program without specification ends then."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()  # the program has forked, and its first process ends immediately

    def _read(self, *, until_end: bool) -> str:
        """Return the output up to the next end of line, or up to the end of the output."""
        text, deadline = b"", time.monotonic() + START_S
        if self._process.stdout is None:
            return ""
        descriptor, ready = self._process.stdout.fileno(), select.poll()
        ready.register(descriptor, select.POLLIN)
        while until_end or not text.endswith(b"\n"):
            if not ready.poll(max(deadline - time.monotonic(), 0) * 1000):
                return f"{text.decode(errors='replace')} (no answer within {START_S:.0f} s)"
            if not (data := os.read(descriptor, 4096)):
                break
            text += data
        return text.decode(errors="replace").strip()


def describe_dnsmasq() -> str:
    """Return the path of dnsmasq and its user. Raise Refused, with the remedy, if one of them is missing."""
    return f"{_find_dnsmasq()}, user {_find_user().pw_name}"


def _find_dnsmasq() -> str:
    """Return the path of the program dnsmasq. Raise Refused if it is not installed."""
    path = shutil.which("dnsmasq", path=SEARCH_PATH)
    if path is None:
        raise Refused(f"host_services need the program dnsmasq, which is not installed: {REMEDY}")
    return path


def _find_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise Refused(f"this host has no user {USER}, as which dnsmasq runs: {REMEDY}") from error


def _find_bridge(segment: Segment, interfaces: Iterable[KernelInterface]) -> KernelInterface:
    for interface in interfaces:
        if interface.name == names.bridge_name(segment.vlan) and names.cluster_of_alias(interface.alias) == segment.id:
            return interface
    raise Refused(
        f"expected bridge {names.bridge_name(segment.vlan)} of cluster {segment.key}, found none on this host"
    )


def _find_port(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> KernelInterface | None:
    for interface in interfaces:
        is_port = interface.name == names.server_port_name(vlan)
        if is_port and names.cluster_of_alias(interface.alias) == cluster:
            return interface
    return None


def _write_files(folder: Path, files: DnsmasqFiles, user: pwd.struct_passwd) -> None:
    """Write the files, which dnsmasq reads with the rights of its group."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, 0, user.pw_gid)
    folder.chmod(FOLDER_MODE)
    for name, text in ((CONFIG, files.config), (NAMES, files.names)):
        _write_file(folder / name, text, user.pw_gid)


def _write_file(path: Path, text: str, group: int) -> None:
    """Replace a file. The server never reads half of a file."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.chown(new, 0, group)
    new.chmod(FILE_MODE)
    new.rename(path)


def _file_arguments(folder: Path) -> list[str]:
    return [f"{option}={folder / name}" for name, option in FILE_OPTIONS.items()]


def _read_start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks after the boot. Return None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in {"Z", "X"} else int(fields[_START_TIME])


def _list_own_processes() -> set[int]:
    """Return the processes in the agent's mount namespace. In another one, the same path is another host's folder."""
    own, found = Path("/proc/self/ns/mnt").readlink(), set()
    for path in Path("/proc").iterdir():
        with suppress(OSError):  # the process has ended
            if path.name.isdigit() and (path / "ns/mnt").readlink() == own:
                found.add(int(path.name))
    return found


def _kill_processes(folder: Path, pids: Iterable[int]) -> None:
    """Kill the processes of a server and wait for their end. dnsmasq forks a process for each TCP connection."""
    for descriptor in _open_processes(folder, pids):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(END_S * 1000):
            raise Refused(f"dnsmasq of {folder} does not end within {END_S:.0f} s after SIGKILL")


def _open_processes(folder: Path, pids: Iterable[int]) -> Iterator[int]:
    """Yield a descriptor of each process that a server of this folder runs. It is valid until the next one."""
    argument = _file_arguments(folder)[0].encode()
    for pid in pids:
        if not _has_argument(pid, argument):
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _has_argument(pid, argument):  # the process ID may have passed to another process
                yield descriptor
        finally:
            os.close(descriptor)


def _has_argument(pid: int, argument: bytes) -> bool:
    try:
        return argument in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
