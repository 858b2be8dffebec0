import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.fake_machine import FakeUplinkRecords
from support.hosts.job_access_host import JOB, UID, is_alive, open_host, require_listener_pid
from support.kernel.mount_namespace import dead_file_server, run_with_own_mounts
from support.kernel.network_namespaces import Run

from virtcloud.agent.job_access import relay_processes, relay_program
from virtcloud.agent.job_access.relay_processes import find_listener_pid, start_relay
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import Refused

HANGING_RELAY = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
os.listdir(sys.argv[2])
"""


def test_another_agent_removes_a_relay_completely(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            before = {interface.name for interface in host.kernel.list_interfaces()}
            host.relays.ensure(JOB, UID)
            process = require_listener_pid(host.relays.socket_path(JOB.key))
            host.restart()
            host.relays.ensure_none(JOB.key)
            host.relays.ensure_none(JOB.key)
            return (
                {interface.name for interface in host.kernel.list_interfaces()} == before,
                _ends_soon(process),
                list(root.iterdir()),
            )

    assert in_namespace(work) == (True, True, [])


def test_removing_the_segment_ends_the_relay(in_namespace: Run, root: Path) -> None:

    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            process = require_listener_pid(host.relays.socket_path(JOB.key))
            SegmentInterfaces(host.kernel, FakeUplinkRecords()).ensure_no_segment("a", 100)
            return sorted(interface.name for interface in host.kernel.list_interfaces()), _ends_soon(process)

    assert in_namespace(work) == (["lo"], True)


def _ends_soon(process: int) -> bool:
    for _ in range(200):
        if not is_alive(process):
            return True
        time.sleep(0.05)
    return False


def test_a_port_without_bridge_is_found_and_removed(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            bridge = host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            host.kernel.delete(bridge.index)
            segments = SegmentInterfaces(host.kernel, FakeUplinkRecords())
            segments_found = [(segment.cluster, segment.vlan) for segment in segments.read()]
            segments.ensure_no_segment("a", 100)
            return segments_found, sorted(interface.name for interface in host.kernel.list_interfaces())

    assert in_namespace(work) == ([("a", 100)], ["lo"])


def test_a_detached_port_is_attached_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            bridge = host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            port = host.interface(names.job_port_name("12.pbs", 100))
            host.kernel.change(port.index, master=0)
            faults = [segment.faults for segment in SegmentInterfaces(host.kernel, FakeUplinkRecords()).read()]
            host.relays.ensure(JOB, UID)
            return faults, host.interface(port.name).master == bridge.index

    assert in_namespace(work) == ([("the tagged interface is missing",)], True)


def test_a_relay_without_specification_ends(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            with start_relay() as relay:
                relay.wait_for_namespace()
                host.kernel.add_veth_pair("vcnewj-100", "job0", relay.pid, 1500)
            for _ in range(200):
                if len(host.kernel.list_interfaces()) == 1:
                    break
                time.sleep(0.05)
            return [interface.name for interface in host.kernel.list_interfaces()]

    assert in_namespace(work) == ["lo"]


def test_a_relay_that_ignores_the_request_to_end_is_killed(
    in_namespace: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_processes, "RELAY_END_S", 0.1)

    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            process = require_listener_pid(host.relays.socket_path(JOB.key))
            os.kill(process, signal.SIGSTOP)
            host.relays.ensure_none(JOB.key)
            return _ends_soon(process), list(root.iterdir())

    assert in_namespace(work) == (True, [])


def test_a_relay_that_cannot_be_killed_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay's process hangs at a file server. The agent waits only a limited time for the process's end."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: file systems of the real kernel need root")
    monkeypatch.setattr(relay_processes, "RELAY_END_S", 0.1)
    monkeypatch.setattr(relay_processes, "RELAY_KILL_S", 0.1)
    path = root / ".relay-12.pbs"
    dead = root / "dead"
    dead.mkdir()

    def work() -> str:
        with dead_file_server(dead) as processes:
            relay = processes.enter_context(
                subprocess.Popen([sys.executable, "-c", HANGING_RELAY, path, dead], stdout=subprocess.PIPE)  # noqa: S603
            )
            assert relay.stdout
            assert relay.stdout.readline() == b"listening\n"
            with pytest.raises(Refused) as raised, open_host(root) as host:
                host.relays.ensure_none("12.pbs")
            return str(raised.value).replace(str(relay.pid), "PID")

    assert run_with_own_mounts(work) == (
        f"relay {path}: expected process PID to end 0.1 s after SIGKILL, but it still runs; find the reason with: "
        "cat /proc/PID/status /proc/PID/stack; the removal will be tried again"
    )


def test_a_relay_that_accepts_no_connection_is_named(
    in_namespace: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's queue of connections to a stopped process is full."""
    monkeypatch.setattr(relay_processes, "RELAY_QUERY_S", 0.1)

    def work() -> str:
        path = root / ".relay-12.pbs"
        with socket.socket(socket.AF_UNIX) as stopped, open_host(root) as host, ExitStack() as callers:
            stopped.bind(str(path))
            stopped.listen(0)
            callers.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
            with pytest.raises(Refused) as raised:
                host.relays.ensure_none("12.pbs")
            return str(raised.value)

    assert in_namespace(work) == (
        f"relay {root}/.relay-12.pbs: expected the process to accept a connection within 0.1 s; find the process with: "
        f"ss -xlp src {root}/.relay-12.pbs; the removal will be tried again"
    )


def test_a_signal_during_the_connection_names_no_process(root: Path) -> None:
    """A relay's queue of connections is full. A signal such as SIGTERM interrupts the agent's call of connect(2)."""
    path, found = root / ".relay-12.pbs", threading.Event()
    caller = threading.get_ident()

    def interrupt() -> None:
        while not found.wait(0.02):
            signal.pthread_kill(caller, signal.SIGUSR1)

    interrupter, handler = threading.Thread(target=interrupt), signal.signal(signal.SIGUSR1, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as other:
        stopped.bind(str(path))
        stopped.listen(0)
        other.connect(str(path))
        try:
            interrupter.start()
            with pytest.raises(Refused, match="a signal interrupted the connection with the process; "):
                find_listener_pid(path)
        finally:
            found.set()
            interrupter.join()
            signal.signal(signal.SIGUSR1, handler)


def test_a_relay_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_processes, "RELAY_START_S", 0.1)
    monkeypatch.setattr(relay_program, "__file__", "/dev/stdin")  # a program that prints nothing
    message = "expected 'apart' and a process ID, got 'no output within 0 s'; see the agent's log"
    with pytest.raises(Refused, match=message), start_relay() as relay:
        relay.wait_for_namespace()
