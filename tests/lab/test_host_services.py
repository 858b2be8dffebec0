import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.lab.capture import capturing
from support.lab.clusters import LIMIT_S, create, remove
from support.lab.leases import GET_LEASE, run_in_guest

from virtcloud.agent.host_services.dnsmasq_config import ADDRESS, MAC
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.node_services import AGENT_STATE
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed"),
]

HOSTS = ("brno-h1", "praha-h1")
SWITCH, PORT = "brno-sw1", "p1"
GUEST_MAC = "02:00:00:00:00:d1"
REPAIR_S = 90.0
"""The time limit of repairs in seconds. The agent reads its host every 30 s."""


@pytest.fixture(scope="module")
def twins(client: SbfClient) -> Iterator[tuple[ClusterView, ClusterView]]:
    guests = tuple(
        Guest(
            name=f"n{i}",
            host=host,
            image="busybox",
            memory_mb=32,
            mac=f"02:00:00:00:00:d{i}",
            addresses=(f"10.0.0.{i}/24", f"fd00::{i}/64"),
        )
        for i, host in enumerate(HOSTS, 1)
    )
    spec = ClusterSpec(owner="eva", guests=guests, host_services=("dhcp", "dns", "metadata"), filters="addresses")
    yield create(client, "first", spec), create(client, "second", spec)
    remove(client, "first", "second")


SERVE_DHCP = """
ip addr add 10.9.0.1/24 dev eth0
cat >/tmp/udhcpd.conf <<'END'
interface eth0
start 10.9.0.20
end 10.9.0.20
option subnet 255.255.255.0
lease_file /tmp/leases
pidfile /tmp/udhcpd.pid
END
busybox touch /tmp/leases
busybox udhcpd /tmp/udhcpd.conf
"""
"""Makes a guest the DHCP server of its network, for one address."""


def in_guest(lab: Lab, cluster: ClusterView, script: str) -> str:
    return run_in_guest(lab, HOSTS[0], cluster, script)


def find_addresses(lab: Lab, cluster: ClusterView, name: str) -> list[str]:
    output = in_guest(lab, cluster, f"busybox nslookup {name} {ADDRESS}")
    return [line.split()[1] for line in output.splitlines() if line.startswith("Address") and ADDRESS not in line]


def read_record(lab: Lab, cluster: ClusterView, name: str = "record") -> dict[str, Any]:
    text = lab.run(HOSTS[0], ("cat", f"{AGENT_STATE}/servers/{cluster.id}/{name}.json")).stdout
    record: dict[str, Any] = json.loads(text or "{}")
    return record


@pytest.fixture(scope="module")
def leases(lab: Lab, twins: tuple[ClusterView, ClusterView]) -> tuple[list[str], str]:
    with capturing(lab, SWITCH, PORT, f"port 67 or port 68 or ether src {MAC}") as capture:
        answers = [in_guest(lab, cluster, GET_LEASE) for cluster in twins]
    return answers, capture.text


def test_guests_of_identical_clusters_get_their_addresses(leases: tuple[list[str], str]) -> None:
    answers, _ = leases
    assert answers == [f"10.0.0.1 n1 {key}.internal {ADDRESS}\n" for key in ("first", "second")]


def test_no_frame_of_a_server_reaches_the_switch(leases: tuple[list[str], str]) -> None:
    _, frames = leases
    assert GUEST_MAC in frames, "expected the guests' requests at the switch, found none"
    assert MAC not in frames


@pytest.mark.usefixtures("leases")
def test_another_cluster_does_not_reach_the_server(lab: Lab, twins: tuple[ClusterView, ClusterView]) -> None:
    """Each server resolves only the names of guests of its own network, including guests on other hosts."""
    found = [[find_addresses(lab, twin, f"n2.{key}.internal") for key in ("first", "second")] for twin in twins]
    both = ["10.0.0.2", "fd00::2"]
    assert found == [[both, []], [[], both]]


@pytest.mark.usefixtures("leases")
def test_guests_of_identical_clusters_read_their_own_seeds(lab: Lab, twins: tuple[ClusterView, ClusterView]) -> None:
    """The instance ID of each guest contains the ID of the guest's cluster."""
    url = f"http://{ADDRESS}/latest"
    script = f"busybox wget -q -O - {url}/meta-data/instance-id; busybox wget -q -O - {url}/user-data"
    found = [in_guest(lab, cluster, script) for cluster in twins]
    assert [text.partition("#")[0] for text in found] == [f"{cluster.id}-n1" for cluster in twins]
    keys = [text.partition("ed25519_private:")[2].partition("END")[0] for text in found]
    assert "OPENSSH PRIVATE KEY" in keys[0]
    assert keys[0] != keys[1]


@pytest.mark.usefixtures("leases")
def test_running_servers_learn_the_names_of_new_members(
    lab: Lab, client: SbfClient, twins: tuple[ClusterView, ClusterView]
) -> None:
    guest = Guest(name="m1", host="praha-h2", image="busybox", memory_mb=32, addresses=("10.0.0.9/24",))
    create(client, "member", ClusterSpec(owner="eva", joins="first", guests=(guest,)))
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (found := find_addresses(lab, twins[0], "m1.member.internal")) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert found == ["10.0.0.9"]
    finally:
        remove(client, "member")


@pytest.mark.usefixtures("leases")
def test_a_killed_server_is_started_again(lab: Lab, twins: tuple[ClusterView, ClusterView]) -> None:
    first, second = twins
    killed = read_record(lab, first)["pid"]
    lab.run(HOSTS[0], ("kill", "-9", str(killed)), check=True)
    assert find_addresses(lab, second, "n2.second.internal")
    deadline = time.monotonic() + REPAIR_S
    while not (found := find_addresses(lab, first, "n2.first.internal")) and time.monotonic() < deadline:
        time.sleep(1)
    assert found
    assert read_record(lab, first)["pid"] != killed


def test_nothing_of_a_server_remains_after_its_cluster_ends(lab: Lab, client: SbfClient) -> None:
    guest = Guest(name="g1", host=HOSTS[0], image="busybox", memory_mb=32)
    cluster = create(client, "short", ClusterSpec(owner="eva", guests=(guest,), host_services=("dhcp", "metadata")))
    record, metadata = read_record(lab, cluster), read_record(lab, cluster, "metadata")
    remove(client, "short")
    processes = f"/proc/{record['pid']}/exe /proc/{metadata['pid']}/exe"
    remaining = f"ls -d {processes} {AGENT_STATE}/servers/{cluster.id} /sys/class/net/vs{record['vlan']}"
    assert lab.run(HOSTS[0], ("sh", "-c", remaining)).stdout == ""


def test_guests_without_addresses_use_the_dhcp_server_of_a_guest(lab: Lab, client: SbfClient) -> None:
    guests = tuple(Guest(name=f"n{i}", host=host, image="busybox", memory_mb=32) for i, host in enumerate(HOSTS, 1))
    own = create(client, "own", ClusterSpec(owner="eva", guests=guests, subnets=(), serves=("dhcp",)))
    run_in_guest(lab, HOSTS[0], own, SERVE_DHCP)
    assert "10.9.0.20" in run_in_guest(lab, HOSTS[1], own, GET_LEASE).split()
    remove(client, "own")
