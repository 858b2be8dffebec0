"""Tests of the kernel's records of guests whose processes were killed for lack of memory."""

import os
from pathlib import Path

import pytest

from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.memory_kills import MemoryKills

DOMAIN = "vc-0123456789ab-n1"
CGROUPS = "/virtcloud.partition/vc-0123456789ab-n1.partition/lxc-7-vc-0123456789ab-n1.libvirt-lxc"
SYSTEMD = "/machine.slice/machine-lxc\\x5cx2d77\\x5cx2dvc\\x5cx2d0123456789ab\\x5cx2dn1.scope/libvirt"
QEMU = "/machine/qemu-3-vc-0123456789ab-n1.libvirt-qemu/emulator"


def record(group: str, constraint: str = "CONSTRAINT_MEMCG") -> str:
    """Return Linux 6.1's log line about a process of ``group`` that the kernel killed for lack of memory."""
    return (
        f"6,1203,8822,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},"
        f"task_memcg={group},task=stress,pid=4711,uid=268435456\n"
    )


class Log:
    """A pipe instead of the kernel's log. Like the log, an open pipe has no end of file."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.now = 0.0
        self.kills = MemoryKills(path, lambda: self.now)
        self._end = os.open(path, os.O_WRONLY)

    def write(self, text: str) -> None:
        os.write(self._end, text.encode())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "kmsg")


@pytest.mark.parametrize("group", [CGROUPS, SYSTEMD, QEMU])
def test_a_kill_at_the_limit_is_found_by_control_group(log: Log, group: str) -> None:
    log.write(record(group))
    assert log.kills.find_cause(DOMAIN, 30) is EndCause.MEMORY_LIMIT


def test_a_kill_for_lack_of_host_memory_is_another_cause(log: Log) -> None:
    log.write(record(QEMU, "CONSTRAINT_NONE"))
    assert log.kills.find_cause(DOMAIN, 30) is EndCause.HOST_MEMORY


def test_a_kill_explains_only_one_end_of_its_guest(log: Log) -> None:
    log.write(record(CGROUPS))
    other = log.kills.find_cause("vc-0123456789ab-n10", 30)
    assert [other, log.kills.find_cause(DOMAIN, 30), log.kills.find_cause(DOMAIN, 30)] == [
        EndCause.UNKNOWN,
        EndCause.MEMORY_LIMIT,
        EndCause.UNKNOWN,
    ]


@pytest.mark.parametrize(("within_s", "cause"), [(30, EndCause.UNKNOWN), (100, EndCause.MEMORY_LIMIT)])
def test_a_kill_that_a_guest_survived_explains_no_later_end(
    log: Log, guests: LocalGuests, monkeypatch: pytest.MonkeyPatch, within_s: float, cause: EndCause
) -> None:
    monkeypatch.setattr(guests, "_kills", log.kills)
    log.write(record(CGROUPS))
    guests.read()
    log.now += 100
    assert guests.find_end_cause("0123456789ab", "n1", within_s) is cause


def test_a_kill_does_not_count_for_a_shorter_name(log: Log) -> None:
    log.write(record(CGROUPS.replace(DOMAIN, f"{DOMAIN}0")))
    assert log.kills.find_cause(DOMAIN, 30) is EndCause.UNKNOWN


def test_a_programs_line_in_the_log_records_no_kill(log: Log) -> None:
    log.write("6,1204,8823,-;stress invoked oom-killer: gfp_mask=0xcc0\n")
    assert log.kills.find_cause(DOMAIN, 30) is EndCause.UNKNOWN


def test_the_cause_is_unknown_if_the_kernels_log_is_missing(tmp_path: Path) -> None:
    assert MemoryKills(tmp_path / "missing").find_cause(DOMAIN, 30) is EndCause.UNKNOWN
