"""Tests of the limits of containers. A folder replaces the kernel's control groups.

The tests in the lab use the kernel's control groups.
"""

import os
import subprocess
from pathlib import Path

import pytest

from virtcloud.agent.guests import control_groups
from virtcloud.agent.guests.control_groups import ContainerLimits, ControlGroups, find_scope

LIMITS = ContainerLimits(cpus=2, memory_mb=64, pids=100)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in (tmp_path, tmp_path / "virtcloud.partition"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids io\n")
        (folder / "cgroup.subtree_control").write_text("memory\n")
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "SYSTEMD", tmp_path / "systemd")
    return tmp_path


def test_a_containers_parent_group_has_its_limits(groups: Path) -> None:
    assert ControlGroups().ensure("vc-a-g1", LIMITS) == "/virtcloud.partition/vc-a-g1.partition"
    group = groups / "virtcloud.partition/vc-a-g1.partition"
    assert {path.name: path.read_text() for path in group.iterdir()} == {
        "cpu.max": "200000 100000",
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "pids.max": "100",
    }
    assert (groups / "cgroup.subtree_control").read_text() == "+cpu +pids"


def test_the_agent_creates_no_groups_on_hosts_with_systemd(groups: Path) -> None:
    (groups / "systemd").mkdir()
    assert ControlGroups().ensure("vc-a-g1", LIMITS) is None
    assert list((groups / "virtcloud.partition").glob("*.partition")) == []


def test_a_host_without_control_groups_runs_containers(groups: Path) -> None:
    (groups / "cgroup.controllers").unlink()
    assert ControlGroups().ensure("vc-a-g1", LIMITS) is None


def test_processes_that_outlive_their_container_are_killed(groups: Path) -> None:
    group = groups / "virtcloud.partition/vc-a-g1.partition"
    group.mkdir()
    (group / "cgroup.kill").touch()
    (group / "cgroup.events").write_text("populated 0\n")
    ControlGroups().ensure("vc-a-g1", LIMITS)
    assert (group / "cgroup.kill").read_text() == "1"


def test_a_group_is_removed_with_its_inner_groups(groups: Path) -> None:
    group = groups / "virtcloud.partition/vc-a-g1.partition"
    (group / "lxc-1.libvirt-lxc/made by the guest").mkdir(parents=True)
    ControlGroups().ensure_none("vc-a-g1")
    ControlGroups().ensure_none("vc-a-g1")
    assert not group.exists()


@pytest.fixture
def commands(groups: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Simulate a host with systemd. The test's own process acts as libvirt's process of the container ``vc-a-g1``."""
    (groups / "systemd").mkdir()
    (groups / "vc-a-g1.pid").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(control_groups, "LIBVIRT_LXC", groups)
    monkeypatch.setattr(control_groups, "find_scope", lambda _text: "machine-lxc-1.scope")
    found: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda argv, **_options: found.append(argv))
    return found


def test_systemd_limits_each_start_of_a_container_once(commands: list[list[str]]) -> None:
    started = ControlGroups().limit_started("vc-a-g1", 100, "")
    assert ControlGroups().limit_started("vc-a-g1", 100, started) == started
    assert commands == [["systemctl", "set-property", "--runtime", "--", "machine-lxc-1.scope", "TasksMax=100"]]
    assert ControlGroups().limit_started("vc-a-g1", 100, f"{os.getpid()} 1") == started
    assert len(commands) == 2


def test_a_limit_that_was_not_set_is_set_later(
    commands: list[list[str]], groups: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """During a reboot, the container has no process."""
    (groups / "vc-a-g1.pid").rename(groups / "kept")
    tried = ControlGroups()
    assert [tried.limit_started("vc-a-g1", 100, "101 5000") for _ in range(2)] == ["101 5000", "101 5000"]
    assert caplog.text.count("limit_not_set") == 1
    (groups / "kept").rename(groups / "vc-a-g1.pid")
    assert tried.limit_started("vc-a-g1", 100, "101 5000").startswith(f"{os.getpid()} ")
    assert len(commands) == 1


@pytest.mark.parametrize(
    "text",
    [
        "0::/machine.slice/machine-lxc\\x2d1.scope/libvirt\n",
        "5:pids:/machine.slice/machine-lxc\\x2d1.scope\n1:name=systemd:/machine.slice/machine-lxc\\x2d1.scope/libvirt\n",
    ],
    ids=["version 2", "version 1"],
)
def test_the_scope_of_a_container_is_found(text: str) -> None:
    assert find_scope(text) == "machine-lxc\\x2d1.scope"


def test_a_container_without_a_scope_is_reported_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"found no scope; .* systemd\.unified_cgroup_hierarchy=1"):
        find_scope("5:pids:/user.slice\n0::/user.slice\n")
