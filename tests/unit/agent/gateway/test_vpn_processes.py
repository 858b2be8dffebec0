import errno
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateways.openvpn_world import OPENVPN, TCP, UDP, GatewayWorld
from support.gateways.vpn_documents import PORTS, VpnAuthority, make_server

from virtcloud.agent.files import write_durably
from virtcloud.agent.gateway import openvpn_processes, vpn_gateway
from virtcloud.agent.gateway.device_control import DeviceControl
from virtcloud.agent.gateway.openvpn_processes import VpnServerRecord
from virtcloud.agent.gateway.vpn_difference import EndVpnSessions, find_vpn_removals
from virtcloud.agent.own_processes import list_own_processes, open_processes, read_start_time
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import HostWanted

pytestmark = pytest.mark.skipif(not OPENVPN, reason="NOT TESTED: openvpn is not installed")


def test_openvpn_runs_without_privileges(in_world: Callable[..., Any]) -> None:
    def work(world: GatewayWorld) -> object:
        status = Path(f"/proc/{world.pid()}/status").read_text()
        return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    status = in_world(work)
    assert "0" not in status["Uid"].split()
    assert (int(status["CapPrm"], 16), int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, 0, "1")
    assert not int(status["CapBnd"], 16) & 1 << 12, "CAP_NET_ADMIN"


def test_private_keys_are_in_no_file(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    def work(world: GatewayWorld) -> object:
        files = [path for path in (world.folder / "vpn").rglob("*") if path.is_file()]
        key = authority.server.private_key.get_secret_value().splitlines()[1]
        command = Path(f"/proc/{world.pid()}/cmdline").read_text()
        return files != [], [path for path in files if key in path.read_text()], key in command

    assert in_world(work) == (True, [], False)


def test_a_killed_server_has_no_connections_and_starts_again(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        client = world.connect(device)
        client.wait_until_connected()
        os.kill(world.pid(), signal.SIGKILL)
        world.wait_for_profiles()
        observed = world.gateway.read(world.kernel.list_interfaces()).servers
        world.gateway.ensure_server(UDP, authority.server)
        world.connect(device).wait_until_connected()
        return observed

    assert in_world(work) == ()


def test_an_unwanted_server_with_an_unreadable_record_is_stopped(in_world: Callable[..., Any]) -> None:
    def work(world: GatewayWorld) -> object:
        pid, interfaces = world.pid(), world.kernel.list_interfaces()
        (world.folder / "vpn/udp/record.json").write_text("{")
        steps = list(find_vpn_removals(HostWanted(), world.gateway.read(interfaces)))
        for step in steps:
            world.gateway.apply(step)
        left = [server.protocol for server in world.gateway.read(interfaces).servers]
        return [str(step) for step in steps], read_start_time(pid), UDP in left

    steps, started, is_left = in_world(work)
    assert "stop the OpenVPN server of udp" in steps
    assert (started, is_left) == (None, False)


@pytest.mark.parametrize("lost", [(), ("record.json",), ("record.json", "sessions.json", "management.sock")])
def test_the_remains_of_an_unwanted_server_are_removed(in_world: Callable[..., Any], lost: tuple[str, ...]) -> None:
    """OpenVPN ended, or the agent was killed while it removed the server."""

    def work(world: GatewayWorld) -> object:
        world.gateway._stop(UDP)
        for name in lost:
            (world.folder / "vpn/udp" / name).unlink(missing_ok=True)
        for name in (".record.new", "sessions.new"):  # incomplete records
            (world.folder / "vpn/udp" / name).touch()
        for step in find_vpn_removals(HostWanted(), world.gateway.read(world.kernel.list_interfaces())):
            world.gateway.apply(step)
        left = world.kernel.list_interfaces()
        return (
            [each.name for each in left],
            list((world.folder / "vpn/udp").iterdir()),
            world.gateway.read(left).remains,
        )

    assert in_world(work) == (["lo"], [], ())


def test_an_incomplete_tap_of_an_unwanted_server_is_removed(in_world: Callable[..., Any]) -> None:
    """The agent was killed while it created the tap, before the alias was set."""

    def work(world: GatewayWorld) -> object:
        world.gateway.ensure_no_server(UDP)
        world.kernel.add_tap("vcnew-vpn-udp")
        steps = list(find_vpn_removals(HostWanted(), world.gateway.read(world.kernel.list_interfaces())))
        for step in steps:
            world.gateway.apply(step)
        return [str(step) for step in steps], [each.name for each in world.kernel.list_interfaces()]

    assert in_world(work) == (["stop the OpenVPN server of udp"], ["lo"])


def test_no_record_of_connections_is_written_after_the_removal(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, record = authority.make_device("laptop"), DeviceControl._record_changes

    def record_late(control: DeviceControl) -> None:
        if control._stopping.is_set():
            time.sleep(0.5)
            control._is_changed = True
        record(control)

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        world.connect(device).wait_until_connected()
        thread = world.gateway._threads[UDP]
        monkeypatch.setattr(DeviceControl, "_record_changes", record_late)
        world.gateway.ensure_no_server(UDP)
        thread.join()
        return list((world.folder / "vpn/udp").iterdir())

    assert in_world(work) == []


def test_a_lack_of_file_descriptors_is_no_unreadable_record(in_world: Callable[..., Any]) -> None:
    def work(world: GatewayWorld) -> object:
        interfaces, (soft, hard) = world.kernel.list_interfaces(), resource.getrlimit(resource.RLIMIT_NOFILE)
        # With a limit of 0, poll(2) would fail in other threads: the limit also applies to the length of poll's list.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(Refused, match="cannot read the record of the OpenVPN server: Too many open files"):
                world.gateway.read(interfaces)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return [server.faults for server in world.gateway.read(interfaces).servers]

    assert in_world(work) == [()]


def test_a_server_that_hangs_is_killed_when_a_grant_ends(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vpn_gateway, "END_S", 0.5)
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        world.connect(device).wait_until_connected()
        (session,) = world.gateway.read(world.kernel.list_interfaces()).servers[0].sessions
        pid = world.pid()
        os.kill(pid, signal.SIGSTOP)
        world.grant()
        with pytest.raises(Refused, match="the OpenVPN server starts again"):
            world.gateway.apply(EndVpnSessions("c100", UDP, (session.client,)))
        return read_start_time(pid)

    assert in_world(work) is None


def test_a_port_in_use_is_refused_with_openvpns_reason(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    def work(world: GatewayWorld) -> object:
        world.gateway.ensure_no_server(TCP)
        with socket.create_server(("", PORTS[TCP])), pytest.raises(Refused) as refused:
            world.gateway.ensure_server(TCP, authority.server)
        return str(refused.value), world.gateway.read(world.kernel.list_interfaces()).servers[0].protocol

    message, running = in_world(work)
    assert "cannot start OpenVPN at tcp port 443" in message
    assert "Address already in use" in message
    assert running is UDP


def test_a_bad_key_is_refused_with_openvpns_reason(in_world: Callable[..., Any]) -> None:
    def work(world: GatewayWorld) -> object:
        with pytest.raises(Refused) as refused:
            world.gateway.ensure_server(TCP, make_server())
        return str(refused.value)

    assert "tls-crypt" in in_world(work) or "certificate" in in_world(work)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("nonsense\n", "Options error: Unrecognized option"),
        ("dev null\nauth none\ncipher none\n", "MANAGEMENT: Socket bind"),
    ],
)
def test_openvpns_reason_is_reported_without_its_time(tmp_path: Path, config: str, reason: str) -> None:
    """The path of the management socket is a folder, so OpenVPN ends even with a valid configuration."""
    launch = openvpn_processes.OpenvpnLaunch(tmp_path)
    launch.configure(config)
    os.waitpid(launch.pid, 0)
    assert launch.read_error().startswith(reason)
    launch.close()


def test_a_missing_program_is_named_with_the_remedy(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(world: GatewayWorld) -> object:
        monkeypatch.setattr(openvpn_processes, "SEARCH_PATH", "/nonexistent")
        with pytest.raises(Refused) as refused:
            world.gateway.ensure_server(TCP, authority.server)
        return str(refused.value)

    assert "which is not installed: apt-get install openvpn" in in_world(work)


def test_a_full_disk_during_a_start_leaves_no_open_descriptor(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_first(path: Path, content: bytes) -> None:
        if VpnServerRecord.model_validate_json(content).config:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_durably(path, content)

    def work(world: GatewayWorld) -> object:
        monkeypatch.setattr(vpn_gateway, "write_durably", write_first)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(Refused, match="No space left on device"):
            world.gateway.ensure_server(TCP, authority.server)
        return len(list(Path("/proc/self/fd").iterdir())) - before

    assert in_world(work) == 0


def test_a_full_disk_starts_no_server_and_leaves_no_process(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def work(world: GatewayWorld) -> object:
        monkeypatch.setattr(vpn_gateway, "write_durably", refuse)
        with pytest.raises(Refused, match="No space left on device"):
            world.gateway.ensure_server(TCP, authority.server)
        running = list(open_processes(str(world.folder / "vpn/tcp/management.sock"), list_own_processes()))
        children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
        return len(running), children == [str(world.pid())]

    assert in_world(work) == (0, True)


def test_a_server_without_a_control_thread_does_not_run(
    in_world: Callable[..., Any], authority: VpnAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def work(world: GatewayWorld) -> object:
        with monkeypatch.context() as lacking:
            lacking.setattr(threading.Thread, "start", refuse)
            with pytest.raises(Refused, match="cannot control OpenVPN at tcp: can't start new thread"):
                world.gateway.ensure_server(TCP, authority.server)
        running = list(open_processes(str(world.folder / "vpn/tcp/management.sock"), list_own_processes()))
        world.gateway.ensure_server(TCP, authority.server)
        return len(running), [server.faults for server in world.gateway.read(world.kernel.list_interfaces()).servers]

    assert in_world(work) == (0, [(), ()])


def test_devices_connect_although_their_record_cannot_be_written(
    in_world: Callable[..., Any], authority: VpnAuthority
) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        (world.folder / "vpn/udp/sessions.new").mkdir()
        world.grant(device.grant("10.0.0.200/24"))
        world.connect(device).wait_until_connected()
        world.wait_for_profiles("laptop")
        return [connection.profile for connection in world.gateway.connections]

    assert in_world(work) == ["laptop"]


def test_a_foreign_interface_with_the_taps_name_stays(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    def work(world: GatewayWorld) -> object:
        world.kernel.add_bridge("vpn-tcp")
        with pytest.raises(Unsafe, match="did not create the interface vpn-tcp"):
            world.gateway.ensure_server(TCP, authority.server)
        world.gateway.ensure_no_server(TCP)
        return [interface.name for interface in world.kernel.list_interfaces() if interface.kind == "bridge"]

    assert in_world(work) == ["vpn-tcp"]


def test_the_end_of_a_server_is_reported_at_once(in_world: Callable[..., Any], authority: VpnAuthority) -> None:
    device = authority.make_device("laptop")

    def work(world: GatewayWorld) -> object:
        world.grant(device.grant("10.0.0.200/24"))
        world.connect(device).wait_until_connected()
        world.wait_for_profiles("laptop")
        reported: list[int] = []
        world.gateway.changed = lambda: reported.append(len(world.gateway.connections))
        world.gateway.ensure_no_server(UDP)
        return reported[-1:]

    assert in_world(work) == [0]


def test_a_removed_server_leaves_nothing(in_world: Callable[..., Any]) -> None:
    def work(world: GatewayWorld) -> object:
        pid = world.pid()
        world.gateway.ensure_no_server(UDP)
        world.gateway.ensure_no_server(UDP)
        names = [interface.name for interface in world.kernel.list_interfaces()]
        return read_start_time(pid), names, list((world.folder / "vpn/udp").iterdir())

    assert in_world(work) == (None, ["lo"], [])
