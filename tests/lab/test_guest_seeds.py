import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lab.clusters import LIMIT_S, create, remove

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOST = "brno-h1"
ENTER_NETWORK = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")
LOGIN_S = 30.0
FOLDER = "/run/seed-test"
"""A folder of the node `HOST`, with the user's private key and known hosts."""


@pytest.fixture(scope="module")
def cluster(lab: Lab, client: SbfClient, user_key: Path) -> Iterator[ClusterView]:
    """A cluster of carol with a guest at each of two sites. The guests' image has no account ``carol``."""
    guests = tuple(make_guest(f"n{i}", host, i) for i, host in enumerate((HOST, "praha-h1"), 1))
    key = user_key.with_suffix(".pub").read_text().strip()
    view = create(client, "seeded", ClusterSpec(owner="carol", guests=guests, authorized_keys=(key,)))
    known_hosts = render_known_hosts(client.peers(view.key, view.id).peers)
    for name, text in (("id", user_key.read_text()), ("known_hosts", known_hosts)):
        lab.run(HOST, ("sh", "-c", f"umask 077; mkdir -p {FOLDER}; cat >{FOLDER}/{name}"), stdin=text, check=True)
    yield view
    lab.run(HOST, ("rm", "-r", FOLDER), check=True)
    remove(client, "seeded")


def make_guest(name: str, host: str, number: int) -> Guest:
    return Guest(name=name, host=host, image="busybox-ssh", memory_mb=64, addresses=(f"10.0.0.{number}/24",))


def log_in(lab: Lab, cluster: ClusterView, guest: str, command: str) -> str:
    """Run a command in a guest with ssh. Repeat a failed login, because a guest's sshd may start after the guest.

    ssh runs in the network of the guest n1, and accepts only the known host key.
    """
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name and name.endswith("-n1"))
    options = (
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={FOLDER}/known_hosts",
        "ConnectTimeout=5",
    )
    ssh = ("ssh", "-F", "none", "-i", f"{FOLDER}/id", *(word for option in options for word in ("-o", option)))
    deadline = time.monotonic() + LOGIN_S
    while True:
        result = lab.run(HOST, ("sh", "-c", ENTER_NETWORK, domain, *ssh, f"carol@{guest}", command))
        if result.returncode == 0 or time.monotonic() > deadline:
            assert result.returncode == 0, result.stderr
            return result.stdout
        time.sleep(0.5)


def test_ssh_logs_a_user_in_without_a_prompt(lab: Lab, cluster: ClusterView) -> None:
    assert log_in(lab, cluster, "10.0.0.2", "id -un; hostname") == "carol\nn2\n"


def test_guests_reach_each_other_without_a_password(lab: Lab, cluster: ClusterView) -> None:
    ssh = "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes"
    commands = f"{ssh} n2 hostname; {ssh} n1.seeded.internal hostname; cat /etc/virtcloud/hostfile"
    assert log_in(lab, cluster, "10.0.0.1", commands) == "n2\nn1\nn1 slots=1\nn2 slots=1\n"


def test_a_running_guest_learns_of_members_without_a_restart(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    start = "cut -d ' ' -f 22 /proc/1/stat"  # proc(5): the time when the guest's first process started
    started = log_in(lab, cluster, "10.0.0.1", start)
    member = ClusterSpec(owner="carol", joins=cluster.key, guests=(make_guest("m1", "praha-h2", 3),))
    create(client, "later", member)
    try:
        wait_for_names(lab, cluster, "10.0.0.3 m1.later.internal", present=True)
        ssh = "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes m1.later.internal 2>&1"
        assert log_in(lab, cluster, "10.0.0.1", f"{ssh} | grep 'Permission denied'"), (
            "expected a refusal, because the member has its own key pair"
        )
    finally:
        remove(client, "later")
    wait_for_names(lab, cluster, "m1.later.internal", present=False)
    assert log_in(lab, cluster, "10.0.0.1", start) == started


def wait_for_names(lab: Lab, cluster: ClusterView, names: str, *, present: bool) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (names in (hosts := log_in(lab, cluster, "10.0.0.1", "cat /etc/hosts"))) != present:
        assert time.monotonic() < deadline, hosts
        time.sleep(0.5)
