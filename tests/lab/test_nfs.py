"""Tests of the service nfs with the kernel's NFS client.

A container cannot mount NFS itself, so the client runs on the host, in a guest's network namespace.
"""

import time
from collections.abc import Collection, Iterator, Mapping

import pytest
from support.lab.clusters import LIMIT_S, create, remove
from support.lab.vpn import connected, find_addresses

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Address
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

GATEWAY, HOST = "brno-gw1", "brno-h1"
SERVER = "10.0.0.246"
OWNERS = {"alice-nfs": "alice", "bob-nfs": "bob"}
IN_GUEST = ENTER_CONTAINER.replace(' -n -m -u -- "$@"', ' -n -- unshare -m sh -c "$1"')
"""A shell command on the host. It runs the script ``$1`` in the network namespace of the container ``$0``.

The script sees the host's files. It runs in a new mount namespace, so its mounts do not change the host.
"""
MOUNT = f"mount -i -t nfs4 -o vers=4.2,addr={SERVER},clientaddr=10.0.0.1,soft,timeo=50 {SERVER}:/ /mnt"
PROBE = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
FIND_SERVERS = "for p in /proc/[0-9]*; do grep -q ganesha $p/comm 2>/dev/null && echo ${p#/proc/}; done; true"


@pytest.fixture(scope="module")
def clusters(client: SbfClient) -> Iterator[Mapping[str, ClusterView]]:
    """Two clusters of different owners, with the same guest address and the same server address."""
    yield {key: create(client, key, make_spec(owner)) for key, owner in OWNERS.items()}
    remove(client, *OWNERS)  # idempotent


def make_spec(owner: str) -> ClusterSpec:
    guest = Guest(name="g1", host=HOST, image="busybox-ssh", memory_mb=64)
    return ClusterSpec(owner=owner, guests=(guest,), subnets=(Address("10.0.0.0/24"),), services=("nfs",))


def run_in_guest(lab: Lab, view: ClusterView, script: str) -> tuple[int, str]:
    domain = next(name for name in read_guests(lab, HOST) if view.id in name)
    done = lab.run(HOST, ("sh", "-c", IN_GUEST, domain, script))
    return done.returncode, (done.stdout + done.stderr).strip()


def on_mount(lab: Lab, view: ClusterView, script: str) -> tuple[int, str]:
    return run_in_guest(lab, view, f"{MOUNT} && cd /mnt/home && {{ {script}; }}")


def run_on_gateway(lab: Lab, script: str) -> str:
    return lab.run(GATEWAY, ("sh", "-c", script), check=True).stdout.strip()


def run_on_exports(lab: Lab, script: str) -> set[str]:
    """Run a script in each server's exported folder on the gateway. Return the set of words in all outputs."""
    folders = " ".join(f"/proc/{pid}/root/exports/home" for pid in find_servers(lab))
    return set(run_on_gateway(lab, f"for one in {folders}; do cd $one; {script}; done; true").split())


def find_servers(lab: Lab) -> list[str]:
    return run_on_gateway(lab, FIND_SERVERS).split()


def wait_for_servers(lab: Lab, former: Collection[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(set(find_servers(lab)) - set(former)) < len(OWNERS):
        assert time.monotonic() < deadline, find_servers(lab)
        time.sleep(1)


def test_guests_find_the_server_by_its_name(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    domain = next(name for name in read_guests(lab, HOST) if clusters["alice-nfs"].id in name)
    done = lab.run(HOST, ("sh", "-c", ENTER_CONTAINER, domain, "/bin/busybox", "cat", "/etc/hosts"))
    assert f"{SERVER} nfs.alice-nfs.internal nfs" in done.stdout.splitlines()


def test_each_of_two_identical_clusters_sees_only_its_owners_files(
    lab: Lab, clusters: Mapping[str, ClusterView]
) -> None:
    for key, owner in OWNERS.items():
        assert on_mount(lab, clusters[key], f"echo {owner} >file") == (0, "")
    for key, owner in OWNERS.items():
        assert on_mount(lab, clusters[key], "cat file; ls") == (0, f"{owner}\nfile\nlost+found")
    assert run_on_exports(lab, "cat file") == {"alice", "bob"}


def test_a_laptop_mounts_files_of_the_cluster_it_joined(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    assert on_mount(lab, clusters["alice-nfs"], "echo alice >file") == (0, "")
    with connected(lab, "alice-nfs", "nfs") as laptop:
        own = find_addresses(lab, "alice-nfs", "nfs")[0].partition("/")[0]
        mount = MOUNT.replace("clientaddr=10.0.0.1", f"clientaddr={own}")
        script = f"{mount} && cd /mnt/home && cat file && echo laptop >from-laptop; cd /; umount /mnt"
        assert laptop.run("unshare", "-m", "sh", "-c", script) == (0, "alice\n")
    assert on_mount(lab, clusters["alice-nfs"], "cat from-laptop; rm from-laptop file") == (0, "laptop")


def test_root_of_a_guest_is_the_owner_on_the_server(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    on_mount(lab, clusters["bob-nfs"], "touch new; chown 0 new; chmod 4755 new")
    assert run_on_exports(lab, "stat -c %u new 2>/dev/null") == {"1002"}


def test_no_symbolic_link_leads_to_a_file_of_the_gateway(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    run_on_gateway(lab, "echo secret >/srv/secret")
    script = "ln -sf /srv/secret a; ln -sf ../../secret b; cat a b; rm a b"
    _, output = on_mount(lab, clusters["alice-nfs"], script)
    assert output.count("No such file") == len(("a", "b")), output


@pytest.mark.parametrize("version", ["3", "4.0", "4.1"])
def test_nfs_versions_older_than_4_2_are_refused(lab: Lab, clusters: Mapping[str, ClusterView], version: str) -> None:
    script = MOUNT.replace("vers=4.2", f"vers={version}").replace("nfs4", "nfs" if version == "3" else "nfs4")
    code, output = run_in_guest(lab, clusters["alice-nfs"], f"timeout 20 {script}")
    assert code != 0, output


@pytest.mark.parametrize("port", [22, 111, 443, 1194])
def test_guests_reach_no_other_service_of_the_gateway(lab: Lab, clusters: Mapping[str, ClusterView], port: int) -> None:
    code, _ = run_in_guest(lab, clusters["alice-nfs"], f"python3 -c '{PROBE}' {SERVER} {port}")
    assert code != 0


def test_a_killed_server_starts_again_with_the_same_files(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    assert on_mount(lab, clusters["alice-nfs"], "echo kept >kept") == (0, "")
    former = find_servers(lab)
    run_on_gateway(lab, f"kill -9 {' '.join(former)}")
    wait_for_servers(lab, former)
    assert on_mount(lab, clusters["alice-nfs"], "cat kept") == (0, "kept")


def test_servers_run_again_after_a_reboot(lab: Lab, clusters: Mapping[str, ClusterView]) -> None:
    lab.power_off(GATEWAY)
    lab.power_on(GATEWAY)
    wait_for_servers(lab, ())
    assert on_mount(lab, clusters["bob-nfs"], "echo bob >file && cat file") == (0, "bob")


def test_nothing_remains_of_ended_clusters(lab: Lab, client: SbfClient, clusters: Mapping[str, ClusterView]) -> None:
    """The test ends the clusters. Therefore it must be the last of the module."""
    assert len(find_servers(lab)) == len(clusters)
    remove(client, *clusters)
    assert find_servers(lab) == []
    assert run_on_gateway(lab, "ls -A /run/virtcloud/agent/nfs /run/virtcloud/namespaces | grep -v :; true") == ""
