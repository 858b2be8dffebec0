"""Two labs that run directly on one kernel. Both labs run in a third lab, whose kernel has all required features."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from virtcloud.lab import Lab

pytestmark = pytest.mark.lab

PLAIN = str(Path(__file__).parent / "topologies/plain.yaml")
FIRST, SECOND = "/run/first", "/run/second"
HOSTS = ("--host", "brno-h1", "--host", "praha-h1", "--image", "busybox")


def virtcloud(lab: Lab, state: str, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = (f"VIRTCLOUD_LAB_STATE={state}", f"VIRTCLOUD_URL=unix://{state}/sbf.sock")
    command = ("env", *environment, sys.executable, "-m", "virtcloud.cli", *argv)
    done = lab.run("laptop", command, timeout_s=150)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done


def state_of_services(lab: Lab, state: str) -> set[str]:
    nodes = json.loads(virtcloud(lab, state, "lab", "status", "--json").stdout)["nodes"]
    return {service for node in nodes.values() for service in node["services"].values()}


def test_two_labs_run_side_by_side_on_one_kernel(lab: Lab) -> None:
    """The first lab has a cluster with guests.

    The second lab starts and stops, and changes nothing in the first lab.
    """
    list_folders = ("sh", "-c", "ls -d /sys/fs/cgroup/*/ /run/*/")
    before = lab.run("laptop", list_folders).stdout
    virtcloud(lab, FIRST, "lab", "up", "--kernel", "direct", PLAIN)
    created = virtcloud(lab, FIRST, "cluster", "create", "inner", *HOSTS)
    assert "cluster inner is active" in created.stdout

    virtcloud(lab, SECOND, "lab", "up", "--kernel", "direct", "--bare", PLAIN)
    assert state_of_services(lab, SECOND) == {"running"}
    virtcloud(lab, SECOND, "lab", "down")

    assert state_of_services(lab, FIRST) == {"running"}
    assert "virtcloud-lab" in lab.run("laptop", list_folders).stdout
    inner = virtcloud(lab, FIRST, "lab", "exec", "praha-h1", "virsh", "-q", "-c", "lxc:///system", "list", "--name")
    assert len(inner.stdout.split()) == 1
    assert "released" in virtcloud(lab, FIRST, "cluster", "delete", "inner").stdout
    virtcloud(lab, FIRST, "lab", "down")
    assert lab.run("laptop", list_folders).stdout == before
