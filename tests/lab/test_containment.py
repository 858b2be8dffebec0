"""Tests of attacks on the host by root in a container. Unlike root of a real guest, the attacker has all capabilities.

One script runs most attacks in one container. Most tests only check the output of this script.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lab.clusters import active, create, remove, until

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.node_services import token_folder
from virtcloud.lab.snapshot import read_guests, run_checked
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.guest_spec import MIN_DISK_MB

pytestmark = pytest.mark.lab

HOST, GUESTS = "brno-h1", Path("/run/virtcloud/agent/guests")
FIRST_ID, PIDS, MEMORY_MB = 0x10000000, 64, 64
SPEC = {
    "owner": "eva",
    "guests": [
        {
            "name": "attacker",
            "host": HOST,
            "image": "busybox",
            "memory_mb": MEMORY_MB,
            "pids": PIDS,
            "disk_mb": MIN_DISK_MB,
            "bandwidth_mbit": 8,
        },
        {"name": "victim", "host": HOST, "image": "busybox", "memory_mb": 32},
    ],
}
ENTER = ENTER_CONTAINER.replace(" -n -m -u ", " -a ")
"""Enters all namespaces of a container, including the user namespace."""
JOIN_GROUP = """
leader=$(pgrep -P "$(pgrep -f "libvirt_lxc --name $0 ")")
echo $$ >"/sys/fs/cgroup$(sed 's/^0:://' "/proc/$leader/cgroup")/cgroup.procs"
"""
ATTACKS = r"""
try() { name=$1; shift; (eval "$*") >/dev/null 2>&1 && echo "$name succeeded" || echo "$name failed"; }
group=/sys/fs/cgroup$(sed 's/^0:://' /proc/1/cgroup)
try own-file 'echo mine >/own-file'
try remount-root mount -o remount,dev /
try remount-group mount -o remount,rw /sys/fs/cgroup
try null-device 'mknod /null c 1 3 && echo >/null'
try memory-device 'mknod /memory c 1 1'
try disk-device 'mknod /disk b 7 0'
mount -o remount,rw /proc/sys
mount -o remount,rw /sys
mkdir -p /tmp/proc && mount -t proc proc /tmp/proc
for proc in /proc /tmp/proc; do
  try "core-pattern $proc" "echo '|/own-file' >$proc/sys/kernel/core_pattern"
  try "modprobe-path $proc" "echo /own-file >$proc/sys/kernel/modprobe"
  try "drop-caches $proc" "echo 1 >$proc/sys/vm/drop_caches"
  try "sysrq $proc" "echo h >$proc/sysrq-trigger"
  try "sysrq-setting $proc" "echo 1 >$proc/sys/kernel/sysrq"
  try "kernel-memory $proc" "head -c 1 $proc/kcore"
done
try uevent-program 'echo /own-file >/sys/kernel/uevent_helper'
try load-module 'head -c 4096 /dev/zero >/own.ko; insmod /own.ko 2>&1 | grep -v "not permitted"'
try host-root 'ls -d /.oldroot/run'
own_mounts=' / (/|/proc|/sys|/dev|/run|/tmp)| /etc/virtcloud '
try host-mounts 'grep -v -E "$own_mounts" /proc/self/mountinfo | grep -E "hostfs|/run/virtcloud"'
mkdir -p /root/shared && mount -t tmpfs tmpfs /root/shared && touch /root/shared/marker
try legacy-groups 'mkdir -p /tmp/v1 && mount -t cgroup -o pids cgroup /tmp/v1'
try release-agent 'echo /own-file >/sys/fs/cgroup/release_agent'
try root-group 'echo 0 >/sys/fs/cgroup/cgroup.procs'
try parent-group 'echo 0 >$group/../cgroup.procs'
for limit in memory.max pids.max cpu.max memory.swap.max; do
  try "parent-$limit" "echo max >$group/../$limit"
  echo max >$group/$limit
done
try fill-disk 'head -c 33554432 /dev/zero >/large'
rm -f /large
"""
"""A shell script that prints the result of each attack. The script also removes the limits of its own control group."""


@pytest.fixture(scope="module")
def domains(lab: Lab) -> Iterator[dict[str, str]]:
    with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
        view = create(client, "containment", ClusterSpec.model_validate(SPEC))
        domains = [domain for domain in read_guests(lab, HOST) if view.id in domain]
        yield {domain.rpartition("-")[2]: domain for domain in domains}
        remove(client, "containment")
    assert run_checked(lab, HOST, "ls", str(GUESTS)) == ""
    assert str(GUESTS) not in run_checked(lab, HOST, "cat", "/proc/self/mountinfo")
    assert run_checked(lab, HOST, "find", "/sys/fs/cgroup/virtcloud.partition", "-mindepth", "1", "-type", "d") == ""


@pytest.fixture(scope="module")
def results(lab: Lab, domains: dict[str, str]) -> dict[str, str]:
    output = run_inside(lab, domains["attacker"], ATTACKS)
    return dict(line.rsplit(" ", 1) for line in output.splitlines() if line.endswith((" succeeded", " failed")))


def run_inside(lab: Lab, domain: str, script: str) -> str:
    return lab.run(HOST, ("sh", "-c", JOIN_GROUP + ENTER, domain, "/bin/sh"), stdin=script).stdout


def run_escaped(lab: Lab, domain: str, *argv: str) -> int:
    """Run a program in a container's user namespace. All other namespaces of the program are the host's namespaces.

    This is the state of an attacker who has left the other namespaces of the container.
    """
    return lab.run(HOST, ("sh", "-c", ENTER.replace(" -a ", " -U "), domain, *argv)).returncode


def select(results: dict[str, str], *attacks: str) -> set[str]:
    found = {result for attack, result in results.items() if attack.startswith(attacks)}
    assert found, attacks
    return found


def test_the_attacker_is_root_in_its_container(results: dict[str, str]) -> None:
    assert select(results, "own-file") == {"succeeded"}


def test_root_inside_is_an_unknown_user_outside(lab: Lab, domains: dict[str, str], results: dict[str, str]) -> None:
    assert results
    owner = run_checked(lab, HOST, "stat", "-c", "%u %g", f"{GUESTS}/{domains['attacker']}/root/own-file").split()
    command = 'ps -o uid= -p "$(pgrep -P "$(pgrep -f "libvirt_lxc --name $0 ")")"'
    (process,) = run_checked(lab, HOST, "sh", "-c", command, domains["attacker"]).split()
    assert owner[0] == owner[1] == process
    assert int(process) >= FIRST_ID
    assert process not in run_checked(lab, HOST, "cat", "/etc/passwd")


def test_root_inside_cannot_remount(results: dict[str, str]) -> None:
    assert select(results, "remount-") == {"failed"}


def test_root_inside_creates_no_devices(results: dict[str, str]) -> None:
    assert select(results, "null-device", "memory-device", "disk-device") == {"failed"}


def test_root_inside_changes_no_setting_of_the_kernel(results: dict[str, str]) -> None:
    assert select(results, "core-pattern", "modprobe-path", "drop-caches", "sysrq-setting", "uevent") == {"failed"}


def test_root_inside_triggers_no_sysrq(results: dict[str, str]) -> None:
    assert select(results, "sysrq ") == {"failed"}


def test_root_inside_reads_no_memory_of_the_kernel(results: dict[str, str]) -> None:
    assert select(results, "kernel-memory") == {"failed"}


def test_root_inside_loads_no_module(results: dict[str, str]) -> None:
    assert select(results, "load-module") == {"failed"}


def test_root_inside_finds_no_folder_of_the_host(results: dict[str, str]) -> None:
    assert select(results, "host-") == {"failed"}


def test_mounts_inside_do_not_appear_on_the_host(lab: Lab, domains: dict[str, str], results: dict[str, str]) -> None:
    assert results
    shared = f"{GUESTS}/{domains['attacker']}/root/root/shared"
    assert run_checked(lab, HOST, "ls", shared) == ""
    assert shared not in run_checked(lab, HOST, "cat", "/proc/self/mountinfo")


def test_root_inside_cannot_leave_its_control_group(results: dict[str, str]) -> None:
    assert select(results, "legacy-groups", "release-agent", "root-group", "parent-group") == {"failed"}


def test_root_inside_cannot_lift_its_limits(results: dict[str, str]) -> None:
    assert select(results, "parent-memory", "parent-pids", "parent-cpu") == {"failed"}


def test_a_fork_bomb_does_not_exhaust_the_hosts_processes(
    lab: Lab, domains: dict[str, str], results: dict[str, str]
) -> None:
    """The attacker has removed the limits of its own control group. The limits of the parent group still apply."""
    assert results
    bomb = "i=0; while [ $i -lt 200 ]; do sleep 2 & i=$((i+1)); done"
    lab.run(HOST, ("sh", "-c", JOIN_GROUP + ENTER, domains["attacker"], "/bin/sh"), stdin=bomb)
    group = f"/sys/fs/cgroup/virtcloud.partition/{domains['attacker']}.partition"
    assert int(run_checked(lab, HOST, "cat", f"{group}/pids.peak")) <= PIDS
    events = run_checked(lab, HOST, "cat", f"{group}/pids.events").split()
    assert int(events[events.index("max") + 1]) > 0


def test_a_guest_cannot_exceed_its_memory_limit(lab: Lab, domains: dict[str, str], results: dict[str, str]) -> None:
    assert results
    run_inside(lab, domains["attacker"], "tail /dev/zero")
    group = f"/sys/fs/cgroup/virtcloud.partition/{domains['attacker']}.partition"
    assert int(run_checked(lab, HOST, "cat", f"{group}/memory.peak")) <= MEMORY_MB << 20
    events = run_checked(lab, HOST, "cat", f"{group}/memory.events").split()
    assert int(events[events.index("oom_kill") + 1]) > 0


def test_a_guest_cannot_exceed_its_processor_limit(lab: Lab, domains: dict[str, str]) -> None:
    group = f"/sys/fs/cgroup/virtcloud.partition/{domains['attacker']}.partition"
    assert run_checked(lab, HOST, "cat", f"{group}/cpu.max") == "100000 100000\n"


def test_a_guest_cannot_exceed_its_disk_size(results: dict[str, str]) -> None:
    assert select(results, "fill-disk") == {"failed"}


def test_a_guests_port_has_the_bandwidth_limit_of_the_guest(lab: Lab, domains: dict[str, str]) -> None:
    xml = run_checked(lab, HOST, "virsh", "-c", "lxc:///system", "dumpxml", domains["attacker"])
    port = xml.partition("<target dev='vc")[2].partition("'")[0]
    assert "rate 8Mbit" in run_checked(lab, HOST, "tc", "class", "show", "dev", f"vc{port}")
    assert "rate 8Mbit" in run_checked(lab, HOST, "tc", "filter", "show", "dev", f"vc{port}", "ingress")


@pytest.mark.parametrize(
    "argv",
    [
        ("ls", "{victim}/root"),
        ("ls", "{victim}/layers"),
        ("touch", "{victim}/root/bin/sh"),
        ("cat", "{token}"),
        ("head", "-c", "1", "/dev/loop0"),
        ("head", "-c", "1", "/dev/mem"),
        ("touch", "/run/virtcloud/agent/agent.lock"),
        ("sh", "-c", "kill -0 $(pgrep -o libvirtd)"),
        ("virsh", "-c", "lxc:///system", "list"),
    ],
)
def test_an_escaped_guest_is_nobody_on_the_host(lab: Lab, domains: dict[str, str], argv: tuple[str, ...]) -> None:
    """The attacker has left all namespaces except the user namespace."""
    assert run_escaped(lab, domains["attacker"], "true") == 0
    folder, token = f"{GUESTS}/{domains['victim']}", f"{token_folder(str(lab.state.folder), HOST)}/token"
    assert run_escaped(lab, domains["attacker"], *(word.format(victim=folder, token=token) for word in argv)) != 0


def test_a_guest_that_runs_out_of_memory_degrades_its_cluster(lab: Lab, domains: dict[str, str]) -> None:
    """The kernel kills all processes of guest ``victim``. The other tests need the victim, so this test is the last."""
    group = f"/sys/fs/cgroup/virtcloud.partition/{domains['victim']}.partition"
    run_checked(lab, HOST, "sh", "-c", f"echo 1 >{group}/memory.oom.group")
    run_inside(lab, domains["victim"], "tail /dev/zero")
    with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
        degraded = until(client, "containment", lambda view: view.state is ClusterState.DEGRADED)
        (trouble,) = [part.trouble for part in degraded.placements if part.element == HOST]
        assert str(trouble).startswith(
            "guest victim ended: the kernel ended its programs at its memory limit of 32 MiB (out of memory): "
        )
        until(client, "containment", active)
    assert domains["victim"] in read_guests(lab, HOST)
