"""The VPN of this gateway: its OpenVPN servers, and the users' devices that connect to these servers.

The servers and connections continue while the agent restarts. Meanwhile, no new device can connect.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import LACK_OF_FILES, refuse_os_errors, write_durably
from virtcloud.agent.gateway.admission import index_grants
from virtcloud.agent.gateway.connection_limits import ConnectionLimits
from virtcloud.agent.gateway.device_control import DeviceControl
from virtcloud.agent.gateway.management_socket import UnixManagementSocket
from virtcloud.agent.gateway.openvpn_config import DEVICES, digest_config, render_config
from virtcloud.agent.gateway.openvpn_processes import OpenvpnLaunch, VpnServerRecord, find_server_account, reap
from virtcloud.agent.gateway.session_records import SessionRecords, list_server_files
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.agent.gateway.vpn_difference import (
    AddVpnPort,
    EndVpnSessions,
    LimitVpnConnections,
    ObservedVpn,
    ObservedVpnServer,
    RemoveVpnPort,
    RunVpnServer,
    StopVpnServer,
    VpnStep,
    find_tap_faults,
    find_vpn_ports,
)
from virtcloud.agent.gateway.vpn_interfaces import VpnInterfaces, VpnKernel, is_own_tap
from virtcloud.agent.network.interfaces import BOOT_ID, KernelInterface
from virtcloud.agent.own_processes import kill_processes, list_own_processes, read_start_time
from virtcloud.model.errors import Refused, Unreachable, VirtcloudError
from virtcloud.model.vpn import VpnConnection, VpnProtocol, VpnServer
from virtcloud.model.wanted import HostWanted, Segment

END_S: Final = 5.0
"""Time limit in seconds for the end of connections without a grant."""
STOP_S: Final = 1.0
"""Time limit in seconds for a stopped thread to record its connections and end."""
TAKE_OVER_S: Final = 2.0
"""Time limit in seconds for a running server to accept the connection of a restarted agent."""
IPV6: Final = Path("/proc/net/if_inet6")
RECORD, SESSIONS, SOCKET = "record.json", "sessions.json", "management.sock"


class VpnGateway:
    """The VPN of this gateway. All operations are idempotent."""

    def __init__(
        self,
        kernel: VpnKernel,
        folder: Path,
        shared: SharedGrants | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Create an object with records in ``folder``. If ``limits`` is None, clients' connections are not limited."""
        self._interfaces = VpnInterfaces(kernel)
        self._folder = folder
        self.changed: Callable[[], object] = lambda: None
        """A function that is called after each change of the connected devices."""
        self._shared = shared or SharedGrants()
        self._limits = limits
        self._controls: dict[VpnProtocol, DeviceControl] = {}
        self._wanted: VpnServer | None = None
        self._threads: dict[VpnProtocol, threading.Thread] = {}
        self._children: set[int] = set()

    @property
    def is_serving(self) -> bool:
        """Whether the agent controls at least one OpenVPN server."""
        return bool(self._controls)

    @property
    def connections(self) -> tuple[VpnConnection, ...]:
        """All connected devices. Thread-safe."""
        return tuple(connection for control in tuple(self._controls.values()) for connection in control.connections)

    def receive(self, wanted: HostWanted, segments: Sequence[Segment]) -> None:
        """Apply the grants of a wanted document immediately. ``segments`` are the segments that this agent supports."""
        self._wanted = wanted.vpn
        self._shared.receive(index_grants(segments))
        for control in self._controls.values():
            control.wake()

    def read(self, interfaces: Sequence[KernelInterface]) -> ObservedVpn:
        """Return the observed VPN. Take over running servers of an earlier agent process.

        Raise Refused if servers are wanted and the host lacks an unprivileged user for the servers. Also raise Refused
        if a server's folder cannot be read, or if a server's record cannot be read because too many files are open.
        """
        servers = [server for protocol in VpnProtocol if (server := self._observe(protocol, interfaces)) is not None]
        port = self._wanted.ports.get(VpnProtocol.TCP) if self._wanted else None
        faults = self._limits.find_faults(port) if self._limits else ()
        running = {server.protocol for server in servers}
        remains = tuple(one for one in VpnProtocol if one not in running and self._has_remains(one, interfaces))
        return ObservedVpn(tuple(servers), tuple(find_vpn_ports(interfaces)), self._wanted_configs(), faults, remains)

    def apply(self, step: VpnStep) -> None:
        """Apply one step. Raise Refused if the step fails, and Unsafe if the step would change a foreign interface."""
        match step:
            case LimitVpnConnections(port):
                if self._limits:
                    self._limits.ensure(port)
            case RunVpnServer(protocol, server):
                self.ensure_server(protocol, server)
            case StopVpnServer(protocol):
                self.ensure_no_server(protocol)
            case EndVpnSessions():
                self._wait_for_end(step)
            case AddVpnPort(segment, protocol):
                self.ensure_port(segment, protocol)
            case RemoveVpnPort(cluster, name):
                self._interfaces.ensure_no_port(cluster, name)

    def close(self) -> None:
        """Stop the control of the servers, and wait until their connections are recorded. The servers continue."""
        for control in self._controls.values():
            control.stop()
        for thread in self._threads.values():
            thread.join(STOP_S)

    def ensure_server(self, protocol: VpnProtocol, server: VpnServer) -> None:
        """Stop the running server of this protocol, if any, and start an OpenVPN server.

        Raise Refused if OpenVPN cannot start.
        """
        self._stop(protocol)
        tap = self._interfaces.ensure_tap(DEVICES[protocol])
        with refuse_os_errors(f"create the folder of the OpenVPN server in {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
            for folder in (self._path(protocol), self._folder / "empty"):
                folder.mkdir(exist_ok=True, mode=0o700)
        config = self._render(server, protocol)
        launch = OpenvpnLaunch(self._path(protocol) / SOCKET)
        try:
            self._start(protocol, launch, config, tap)
        except VirtcloudError as error:
            self._stop(protocol)
            if isinstance(error, Unreachable):
                raise Refused(f"cannot start OpenVPN at {protocol} port {server.ports[protocol]}: {error}") from error
            raise
        finally:
            launch.close()

    def ensure_no_server(self, protocol: VpnProtocol) -> None:
        """Stop a server, and remove its tap and its records."""
        self._stop(protocol)
        self._interfaces.ensure_no_tap(DEVICES[protocol])
        with refuse_os_errors(f"remove the records of {self._path(protocol)}"):
            for path in list_server_files(self._path(protocol)):
                path.unlink(missing_ok=True)

    def ensure_port(self, segment: Segment, protocol: VpnProtocol) -> None:
        """Connect a server with a network's bridge. Raise Refused if the server does not run or no bridge exists."""
        if protocol not in self._controls:
            raise Refused(f"the OpenVPN server of {protocol} is not running")
        self._interfaces.ensure_port(segment, protocol)

    def _start(self, protocol: VpnProtocol, launch: OpenvpnLaunch, config: str, tap: int) -> None:
        record = VpnServerRecord(
            protocol=protocol,
            pid=launch.pid,
            started=read_start_time(launch.pid) or 0,
            boot=BOOT_ID.read_text().strip(),
            tap=tap,
        )
        self._children.add(launch.pid)
        self._write_record(record)
        launch.configure(config)
        with launch.named_errors():
            connection = UnixManagementSocket(self._path(protocol) / SOCKET, has_ended=launch.has_ended)
        control = self._make_control(protocol, connection)
        try:
            control.start()
            self._write_record(record.model_copy(update={"config": digest_config(config)}))
            self._run(protocol, control)
        except VirtcloudError:
            connection.close()
            raise
        log.info("vpn_server_started", protocol=protocol, pid=launch.pid)

    def _observe(self, protocol: VpnProtocol, interfaces: Sequence[KernelInterface]) -> ObservedVpnServer | None:
        record = self._read_record(protocol)
        if record is None and (self._path(protocol) / RECORD).exists():
            return ObservedVpnServer(protocol, "", ("the server's record is unreadable",))
        if record is None or not record.is_running:
            return None
        fault = self._take_over(protocol) if protocol not in self._controls else self._controls[protocol].fault
        tap = next((interface for interface in interfaces if interface.name == DEVICES[protocol]), None)
        faults = [*([fault] if fault else []), *find_tap_faults(tap, DEVICES[protocol])]
        if tap is not None and tap.index != record.tap:
            faults.append(f"{tap.name} was created again")
        control = self._controls.get(protocol)
        return ObservedVpnServer(protocol, record.config, tuple(faults), control.sessions if control else ())

    def _has_remains(self, protocol: VpnProtocol, interfaces: Sequence[KernelInterface]) -> bool:
        has_tap = any(is_own_tap(interface, DEVICES[protocol]) for interface in interfaces)
        return has_tap or bool(list_server_files(self._path(protocol)))

    def _take_over(self, protocol: VpnProtocol) -> str | None:
        """Return an error message if the server cannot be controlled, otherwise None."""
        try:
            connection = UnixManagementSocket(self._path(protocol) / SOCKET, TAKE_OVER_S)
        except VirtcloudError as error:
            return str(error)
        control = self._make_control(protocol, connection)
        try:
            control.take_over()
            self._run(protocol, control)
        except VirtcloudError as error:
            connection.close()
            return str(error)
        return None

    def _make_control(self, protocol: VpnProtocol, connection: UnixManagementSocket) -> DeviceControl:
        records = SessionRecords(self._path(protocol) / SESSIONS)
        return DeviceControl(protocol, connection, self._shared, records, self._notice_change)

    def _notice_change(self) -> None:
        # A profile has one open connection. The other server must end the profile's older connection.
        for control in tuple(self._controls.values()):
            control.wake()
        self.changed()

    def _run(self, protocol: VpnProtocol, control: DeviceControl) -> None:
        thread = threading.Thread(target=control.run, name=f"devices at OpenVPN {protocol}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise Refused(f"cannot control OpenVPN at {protocol}: {error}; free memory or tasks") from error
        self._controls[protocol], self._threads[protocol] = control, thread
        self.changed()

    def _stop(self, protocol: VpnProtocol) -> None:
        control, thread = self._controls.pop(protocol, None), self._threads.pop(protocol, None)
        if control is not None:
            control.stop()
            self.changed()
        record = self._read_record(protocol)
        recorded = {record.pid} if record is not None and record.is_running else set()
        kill_processes(str(self._path(protocol) / SOCKET), recorded | list_own_processes())
        for pid in [pid for pid in self._children if read_start_time(pid) is None]:
            reap(pid)
            self._children.discard(pid)
        if thread is not None:  # the thread must write its last record before the records are removed
            thread.join(STOP_S)

    def _wait_for_end(self, step: EndVpnSessions) -> None:
        """Wait until the connections with the client IDs ``step.clients`` have ended.

        If the agent does not control the server, or if the connections do not end within `END_S`, stop the server. In
        the second case, raise Refused.
        """
        control, deadline = self._controls.get(step.protocol), time.monotonic() + END_S
        while control is not None and control.fault is None:
            if not {session.client for session in control.sessions} & set(step.clients):
                return
            if time.monotonic() > deadline:
                self._stop(step.protocol)
                raise Refused(f"connections did not end within {END_S:.0f} s; the OpenVPN server starts again")
            control.wake()
            time.sleep(0.05)
        self._stop(step.protocol)

    def _wanted_configs(self) -> dict[VpnProtocol, str]:
        if (server := self._wanted) is None:
            return {}
        return {protocol: digest_config(self._render(server, protocol)) for protocol in server.ports}

    def _render(self, server: VpnServer, protocol: VpnProtocol) -> str:
        return render_config(server, protocol, find_server_account(), self._folder / "empty", ipv6=IPV6.exists())

    def _path(self, protocol: VpnProtocol) -> Path:
        return self._folder / protocol.value

    def _read_record(self, protocol: VpnProtocol) -> VpnServerRecord | None:
        try:
            return VpnServerRecord.model_validate_json((self._path(protocol) / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            if isinstance(error, OSError) and error.errno in LACK_OF_FILES:
                raise Refused(f"cannot read the record of the OpenVPN server: {error.strerror}") from error
            log.warning("vpn_record_unreadable", file=self._path(protocol) / RECORD, error=error)
            return None

    def _write_record(self, record: VpnServerRecord) -> None:
        with refuse_os_errors("record the OpenVPN server"):
            write_durably(self._path(record.protocol) / RECORD, record.model_dump_json().encode())
