"""Test of two labs on one kernel. Both labs run inside a third lab, whose kernel has all required features."""

import json
import sys
from pathlib import Path

import pytest

from virtcloud.lab import Lab

pytestmark = pytest.mark.lab

PLAIN = str(Path(__file__).parent / "topologies/plain.yaml")
FIRST, SECOND = "/run/first", "/run/second"
HOSTS = ("--host", "brno-h1", "--host", "praha-h1", "--image", "busybox")


RUN_COMMANDS = """
import json, sys
from click.testing import CliRunner
from virtcloud.cli import main
for state, *argv in json.load(sys.stdin):
    environment = {"VIRTCLOUD_LAB_STATE": state, "VIRTCLOUD_URL": f"unix://{state}/sbf.sock"}
    done = CliRunner(env=environment).invoke(main, argv)
    print(json.dumps(done.stdout))
    if done.exit_code:
        sys.exit(f"{argv}: exit code {done.exit_code}: {done.output} {done.exception!r}")
"""


def virtcloud(lab: Lab, *commands: tuple[str, ...]) -> list[str]:
    """Run commands of virtcloud. Return their outputs. Each command begins with the state folder of its lab.

    All commands run in one process, because each further process would import the modules again, which takes seconds.
    """
    done = lab.run("laptop", (sys.executable, "-c", RUN_COMMANDS), stdin=json.dumps(commands), timeout_s=250)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def states_of_services(status: str) -> set[str]:
    return {service for node in json.loads(status)["nodes"].values() for service in node["services"].values()}


def test_two_labs_run_side_by_side_on_one_kernel(lab: Lab) -> None:
    list_folders = ("sh", "-c", "ls -d /sys/fs/cgroup/*/ /run/*/")
    before = lab.run("laptop", list_folders).stdout
    _, created, _, of_second, _, of_first = virtcloud(
        lab,
        (FIRST, "lab", "up", "--kernel", "direct", PLAIN),
        (FIRST, "cluster", "create", "inner", *HOSTS),
        (SECOND, "lab", "up", "--kernel", "direct", "--bare", PLAIN),
        (SECOND, "lab", "status", "--json"),
        (SECOND, "lab", "down"),
        (FIRST, "lab", "status", "--json"),
    )
    assert "cluster inner is active" in created
    assert states_of_services(of_second) == {"running"}
    assert states_of_services(of_first) == {"running"}
    assert "virtcloud-lab" in lab.run("laptop", list_folders).stdout
    list_guests = ("lab", "exec", "praha-h1", "virsh", "-q", "-c", "lxc:///system", "list", "--name")
    command = ("env", f"VIRTCLOUD_LAB_STATE={FIRST}", sys.executable, "-m", "virtcloud.cli", *list_guests)
    assert len(lab.run("laptop", command, check=True).stdout.split()) == 1
    deleted, _ = virtcloud(lab, (FIRST, "cluster", "delete", "inner"), (FIRST, "lab", "down"))
    assert "released" in deleted
    assert lab.run("laptop", list_folders).stdout == before
