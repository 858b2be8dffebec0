"""Tests of a user's computer as the router of a cluster in a real lab.

The computer is the lab's own network namespace, which uses this machine's kernel. The kernel of the lab's nodes
(User-mode Linux) cannot translate addresses.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.kernel.network_namespaces import NetworkNamespace, network_namespaces
from support.lab.clusters import create, remove
from support.lab.vpn import GATEWAY, HOST, access

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import management_address, number_nodes
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

KEY, LIMIT_S = "routed", 20.0
COMPUTER, OUTSIDE, OUTSIDE6 = "203.0.113.1", "203.0.113.9", "2001:db8::9"


class RouterComputer:
    """A computer with the files of ``virtcloud access router``. Only this computer reaches the host ``outside``."""

    def __init__(self, lab: Lab, outside: NetworkNamespace, folder: Path) -> None:
        pid = lab.state.pid()
        assert pid is not None
        self.namespace, self.outside = NetworkNamespace(pid), outside
        self.folder, self.state = folder, folder / "state"
        self.namespace.connect("out0", outside, "eth0")
        self.namespace.check(f"ip addr add {COMPUTER}/24 dev out0; ip addr add 2001:db8::1/64 dev out0 nodad")
        outside.check(f"ip addr add {OUTSIDE}/24 dev eth0; ip addr add {OUTSIDE6}/64 dev eth0 nodad")

    def router(self, command: str) -> str:
        done = self.namespace.run(str(self.folder / "router"), command, env={"VIRTCLOUD_ROUTER_STATE": str(self.state)})
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def cluster(client: SbfClient) -> Iterator[ClusterView]:
    """A cluster with ``filters="addresses"``.

    The filters must accept packets that the router forwards, with source addresses outside of the network.
    """
    guest = Guest(name="g1", host=HOST, image="busybox-ssh", memory_mb=64)
    spec = ClusterSpec(owner="alice", guests=(guest,), vpn=True, router="device", filters="addresses")
    yield create(client, KEY, spec)
    remove(client, KEY)


@pytest.fixture(scope="module")
def computer(lab: Lab, cluster: ClusterView, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterComputer]:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the router needs root")
    folder = tmp_path_factory.mktemp("router")
    access(lab, "router", KEY, "--output", str(folder), "--forward", "8080:g1:22")
    profile = folder / "router.ovpn"
    address = management_address(number_nodes(lab.topology)[GATEWAY])
    profile.write_text(profile.read_text().replace(f"remote {GATEWAY} ", f"remote {address} "))
    with network_namespaces(1) as (outside,):
        found = RouterComputer(lab, outside, folder)
        found.router("up")
        yield found
        found.router("down")


def run_in_guest(lab: Lab, cluster: ClusterView, *argv: str) -> str:
    domain = next(name for name in read_guests(lab, HOST) if cluster.id in name)
    done = lab.run(HOST, ("sh", "-c", ENTER_CONTAINER, domain, *argv))
    return done.stdout + done.stderr


@pytest.mark.parametrize("address", [OUTSIDE, OUTSIDE6])
def test_a_guest_reaches_the_outside_through_the_users_computer(
    lab: Lab, cluster: ClusterView, computer: RouterComputer, address: str
) -> None:
    output = run_in_guest(lab, cluster, "/bin/ping", "-c", "2", "-W", "3", address)
    assert "2 packets received" in output, output


def test_the_outside_reaches_a_guest_through_the_forwarded_port(computer: RouterComputer) -> None:
    connection = computer.outside.call(lambda: socket.create_connection((COMPUTER, 8080), LIMIT_S))
    with closing(connection):
        connection.settimeout(LIMIT_S)
        assert connection.recv(64).startswith(b"SSH-2.0-")


def test_the_script_reports_that_its_router_was_revoked(lab: Lab, computer: RouterComputer) -> None:
    access(lab, "revoke", KEY, "router")
    deadline = time.monotonic() + LIMIT_S
    while "not connected: OpenVPN ended" not in (status := computer.router("status")):
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
