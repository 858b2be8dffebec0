"""Tests of a lab in which neither SBF nor agents run."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from virtcloud.lab import Lab, LabEvent, LabIsDown, LabIsUp, LabOptions, UnknownInLab, read_lab_file
from virtcloud.lab.lab_kernel import choose_kernel
from virtcloud.lab.state import LabState, find_remains, process_start_time

pytestmark = pytest.mark.lab
BARE_LAB = LabOptions(bare=True)
PLAIN = Path(__file__).parent / "topologies/plain.yaml"
HASH_IN_THREADS = """
import hashlib, threading
def print_hash(number):
    print(number, hashlib.pbkdf2_hmac("sha256", b"password", bytes([number]), 300_000).hex(), flush=True)
for number in range(4):
    threading.Thread(target=print_hash, args=(number,)).start()
"""


def processes_of_lab(pid: int) -> set[int]:
    wanted = Path(f"/proc/{pid}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == wanted:
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def have_ended(pids: set[int], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(process_start_time(pid) is not None for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(process_start_time(pid) is not None for pid in pids)


def connect_vlan_100(lab: Lab, host: str, switch: str, address: str) -> None:
    for port in ("p1", "uplink"):
        lab.run(switch, ["bridge", "vlan", "add", "dev", port, "vid", "100"], check=True)
    lab.run(host, ["ip", "link", "add", "link", "eth0", "name", "eth0.100", "type", "vlan", "id", "100"], check=True)
    lab.run(host, ["ip", "addr", "add", address, "dev", "eth0.100"], check=True)
    lab.run(host, ["ip", "link", "set", "eth0.100", "up"], check=True)


def test_new_switches_carry_no_vlan(bare: Lab) -> None:
    assert json.loads(bare.run("plzen-sw1", ["bridge", "-json", "vlan"]).stdout) == []


def test_full_frames_cross_the_core_in_their_vlan_only(bare: Lab) -> None:
    connect_vlan_100(bare, "brno-h1", "brno-sw1", "10.0.0.1/24")
    connect_vlan_100(bare, "praha-h1", "praha-sw1", "10.0.0.2/24")
    ping_full_frames = ["ping", "-c", "2", "-W", "2", "-s", "1472", "-M", "do", "10.0.0.2"]
    assert bare.run("brno-h1", ping_full_frames).returncode == 0
    bare.run("praha-sw1", ["bridge", "vlan", "del", "dev", "uplink", "vid", "100"], check=True)
    assert bare.run("brno-h1", ["ping", "-c", "1", "-W", "1", "10.0.0.2"]).returncode == 1


def test_the_core_delays_frames_by_distance(bare: Lab) -> None:
    """Brno and Plzeň are 400 km apart. The delay through the core is 2 ms in each direction."""
    connect_vlan_100(bare, "brno-h2", "brno-sw1", "10.0.1.1/24")
    bare.run("brno-sw1", ["bridge", "vlan", "add", "dev", "p2", "vid", "100"], check=True)
    connect_vlan_100(bare, "plzen-h1", "plzen-sw1", "10.0.1.2/24")
    answer = bare.run("brno-h2", ["ping", "-c", "4", "-i", "0.2", "10.0.1.2"], check=True).stdout
    shortest = float(answer.rsplit("=", 1)[1].split("/")[0])
    assert 4 <= shortest < 15


def test_run_passes_stdin_stdout_stderr_and_the_exit_code(bare: Lab) -> None:
    done = bare.run("brno-h1", ["sh", "-c", "cat; echo lost >&2; exit 7"], stdin="found\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "found\n", "lost\n")


def test_a_killed_command_has_a_negative_exit_code(bare: Lab) -> None:
    assert bare.run("brno-h1", ["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM


def test_a_large_input_and_output_of_a_command_are_complete(bare: Lab) -> None:
    text = "0123456789abcdef" * 40_000
    assert bare.run("laptop", ["cat"], stdin=text).stdout == text


@pytest.mark.parametrize("arguments", [["'a b'", "$HOME", "*"], ["", "\n", '"']])
def test_arguments_reach_the_command_unchanged(bare: Lab, arguments: list[str]) -> None:
    done = bare.run("core", ["printf", "%s\\0", *arguments])
    assert done.stdout.split("\0")[:-1] == arguments


def test_a_node_has_its_own_name_and_interfaces(bare: Lab) -> None:
    assert bare.run("brno-gw1", ["hostname"]).stdout == "brno-gw1\n"
    links = json.loads(bare.run("brno-gw1", ["ip", "-json", "link"]).stdout)
    assert {link["ifname"] for link in links} == {"lo", "eth0", "mgmt0", "outside0"}


def test_the_laptop_reaches_the_gateway_and_not_sbf(bare: Lab) -> None:
    assert bare.run("laptop", ["ping", "-c", "1", "-W", "2", "brno-gw1"]).returncode == 0
    assert bare.run("laptop", ["ping", "-c", "1", "198.18.0.1"]).stderr == "ping: connect: Network is unreachable\n"


def test_threads_keep_their_vector_registers(bare: Lab) -> None:
    """OpenSSL computes the hashes in vector registers, while the kernel of the lab switches between the threads."""
    done = bare.run("laptop", [sys.executable, "-I", "-S", "-c", HASH_IN_THREADS], check=True)
    hashes = [hashlib.pbkdf2_hmac("sha256", b"password", bytes([number]), 300_000).hex() for number in range(4)]
    assert sorted(done.stdout.splitlines()) == [f"{number} {digest}" for number, digest in enumerate(hashes)]


def test_only_hosts_and_gateways_have_a_power_switch(bare: Lab) -> None:
    with pytest.raises(
        UnknownInLab, match="node brno-sw1 has no power switch; the hosts and gateways have one: brno-h1"
    ):
        bare.power_off("brno-sw1")


def test_unknown_nodes_and_services_are_named(bare: Lab) -> None:
    with pytest.raises(UnknownInLab, match="the lab has no node ostrava-h1"):
        bare.run("ostrava-h1", ["true"])
    with pytest.raises(UnknownInLab, match="no service agent; its services are: libvirtd"):
        bare.service("brno-h1", "agent").stop()


def test_a_dead_service_is_reported_and_can_be_restarted(bare: Lab) -> None:
    bare.run("praha-h2", ["sh", "-c", "kill -KILL $(pidof libvirtd)"], check=True)
    ends = time.monotonic() + 10
    while bare.all_services_run() and time.monotonic() < ends:
        time.sleep(0.02)
    assert bare.status()["nodes"]["praha-h2"]["services"] == {"libvirtd": "died (-9)"}
    assert not bare.all_services_run()
    bare.service("praha-h2", "libvirtd").start()
    assert bare.status()["nodes"]["praha-h2"]["services"] == {"libvirtd": "running"}
    assert bare.run("praha-h2", ["virsh", "-c", "lxc:///system", "list"]).returncode == 0


def test_a_second_lab_with_the_same_state_folder_is_refused(bare: Lab) -> None:
    with pytest.raises(LabIsUp, match="virtcloud lab down"):
        Lab.up(read_lab_file(), BARE_LAB, state=bare.state)
    assert bare.all_services_run()


def test_the_later_of_two_concurrent_starts_is_refused(own_state: LabState) -> None:
    class StopStartError(Exception):
        pass

    def start_another(_event: LabEvent) -> None:
        with pytest.raises(LabIsUp, match="another process is starting a lab"):
            Lab.up(read_lab_file(), BARE_LAB, state=own_state)
        raise StopStartError

    with pytest.raises(StopStartError):
        Lab.up(read_lab_file(), BARE_LAB, watch=start_another, state=own_state)
    assert find_remains(own_state) == []


def test_a_start_after_a_crash_reports_and_removes_the_remains(own_state: LabState) -> None:
    lab = Lab.up(read_lab_file(PLAIN), BARE_LAB, state=own_state)
    first = own_state.pid()
    assert first is not None
    processes = processes_of_lab(first)
    mounts = Path("/proc/mounts").read_text()
    os.kill(first, signal.SIGKILL)
    assert have_ended(processes)
    assert Path("/proc/mounts").read_text() == mounts
    with pytest.raises(LabIsDown):
        Lab.running(own_state)
    assert str(own_state.folder) in find_remains(own_state)
    events: list[LabEvent] = []
    Lab.up(read_lab_file(PLAIN), BARE_LAB, events.append, own_state)
    assert any(event.step == "remains" and str(own_state.folder) in event.text for event in events)
    lab.down()
    assert find_remains(own_state) == []


@pytest.mark.parametrize("what", ["the kernel boots", "nodes start", "services start"])
def test_an_interrupted_start_leaves_no_remains(own_state: LabState, what: str) -> None:
    """The test presses Ctrl-C in each step. A step has begun when the command has printed the previous step's line."""
    before = {"the kernel boots": "files (", "nodes start": "kernel (", "services start": "sshd ("}[what]
    if choose_kernel() != "uml" and before == "kernel (":
        before = "files ("  # the lab uses the kernel of the test host, so no kernel boots
    command = [sys.executable, "-m", "virtcloud.cli", "lab", "up", "--bare", str(PLAIN)]
    environment = {**os.environ, "VIRTCLOUD_LAB_STATE": str(own_state.folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as starting:  # noqa: S603 - our own command
        assert starting.stderr is not None
        assert any(before in line for line in starting.stderr)
        launcher = own_state.launcher()
        starting.send_signal(signal.SIGINT)
        starting.communicate(timeout=60)
    assert starting.returncode == 130
    assert launcher is None or have_ended({launcher})
    assert find_remains(own_state) == []
