import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.lab.capture import capturing
from support.lab.clusters import until
from support.lab.pings import pinging

from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import Snapshot, read_guests, take_snapshot
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict
from virtcloud.model.site import CableState
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOSTS = ("h1", "h2", "h3", "praha-h1", "praha-h2")
BROADCAST = "10.0.0.255"
LIMIT_S = 60.0
ALL_HOSTS_VLANS = {
    "sw1": {"edge": "100", "to2": "100", "to3": "100", "h3": "100"},
    "sw2": {"to1": "100", "h1": "100"},
    "sw3": {"to1": "100", "lagh2": "100"},
    "psw": {"h1": "100", "h2": "100", "edge": "100"},
}
"""The VLANs on the ports of each switch while one cluster has guests on all hosts.

The side of the ring between sw2 and sw3, and the second uplink of h1, carry no VLAN.
"""


@pytest.fixture(scope="module")
def client(paths: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{paths.sbf_socket}", timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def before(paths: Lab) -> Snapshot:
    return take_snapshot(paths, paths.topology)


@pytest.fixture(scope="module")
def cluster(client: SbfClient, before: Snapshot) -> ClusterView:
    return create(client, "ring", *HOSTS)


def spec(*hosts: str) -> ClusterSpec:
    guests = [
        {"name": f"n{i}", "host": host, "image": "busybox", "memory_mb": 32, "addresses": [f"10.0.0.{i}/24"]}
        for i, host in enumerate(hosts, start=1)
    ]
    return ClusterSpec.model_validate({"owner": "alice", "guests": guests, "deadline_s": LIMIT_S})


def create(client: SbfClient, key: str, *hosts: str) -> ClusterView:
    client.put_cluster(key, ClusterRequest(spec=spec(*hosts)))
    return until(client, key, lambda view: view.state is ClusterState.ACTIVE)


def remove(client: SbfClient, key: str) -> None:
    client.delete_cluster(key)
    until(client, key, lambda view: view.state in ENDED_STATES)


def read_vlans(lab: Lab) -> dict[str, dict[str, str]]:
    return take_snapshot(lab, lab.topology).switches


PING_ALL = """for n in $(seq $1); do
  { for try in 1 2 3 4 5; do /bin/ping -c 1 -W 1 -s 1472 10.0.0.$n && exit; done >/dev/null; echo $n; } &
done
wait"""


def find_unreachable(lab: Lab, sender: str) -> list[str]:
    (domain,) = read_guests(lab, sender)
    command = ("sh", "-c", ENTER_CONTAINER, domain, "/bin/sh", "-c", PING_ALL, "sh", str(len(HOSTS)))
    return [HOSTS[int(number) - 1] for number in lab.run(sender, command, check=True).stdout.split()]


@contextmanager
def topology_without(lab: Lab, client: SbfClient, *without: str) -> Iterator[None]:
    """Remove links from the topology within the block, and restore the topology afterwards.

    ``without`` contains one port of each link to remove.
    """
    document = lab.topology.model_dump(mode="json")
    kept = [one for one in document["links"] if not {one["a"], one["b"]} & set(without)]
    client.put_topology(Topology.model_validate(document | {"links": kept}), ANY_VERSION)
    try:
        yield
    finally:
        client.put_topology(lab.topology, ANY_VERSION)


@contextmanager
def disconnected(lab: Lab, node: str, port: str) -> Iterator[None]:
    lab.run(node, ["ip", "link", "set", port, "down"], check=True)
    try:
        yield
    finally:
        lab.run(node, ["ip", "link", "set", port, "up"], check=True)


def of_network(first: int, *hosts: str, **changes: object) -> ClusterSpec:
    """Return the spec of a cluster that creates or joins a network, with a guest on each host.

    The guests' names and addresses contain consecutive numbers. The first number is ``first``.
    """
    guests = [
        {"name": f"m{i}", "host": host, "image": "busybox", "memory_mb": 32, "addresses": [f"10.0.0.{i}/24"]}
        for i, host in enumerate(hosts, start=first)
    ]
    return ClusterSpec.model_validate({"owner": "alice", "guests": guests, "deadline_s": LIMIT_S} | changes)


def wait_for_vlans(lab: Lab, wanted: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Wait at most ``LIMIT_S`` until the switches carry the wanted VLANs. Return the VLANs that the switches carry."""
    deadline = time.monotonic() + LIMIT_S
    while (seen := read_vlans(lab)) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


def test_lldp_shows_every_cable_including_members_of_aggregates(paths: Lab, client: SbfClient) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (found := client.check_cables("brno")).wrong or any(one.state is CableState.UNKNOWN for one in found.cables):
        assert time.monotonic() < deadline, found
        for node in ("sw1", "sw2", "sw3", "h1", "h2", "h3"):
            paths.run(node, ["lldpcli", "update"])
    assert [f"{one.a} {one.b}" for one in found.cables] == [
        "sw1:to2 sw2:to1",
        "sw1:to3 sw3:to1",
        "sw2:lag3a sw3:lag2a",
        "sw2:lag3b sw3:lag2b",
        "h1:eth0 sw2:h1",
        "h1:eth1 sw3:h1",
        "h2:eth0 sw3:h2a",
        "h2:eth1 sw3:h2b",
        "h3:eth0 sw1:h3",
    ]


def test_only_links_of_the_path_carry_the_cluster(paths: Lab, cluster: ClusterView) -> None:
    assert read_vlans(paths) == ALL_HOSTS_VLANS
    assert [find_unreachable(paths, host) for host in ("h1", "h3", "praha-h2")] == [[], [], []]


def test_no_frame_arrives_twice(paths: Lab, cluster: ClusterView) -> None:
    """Every guest receives each broadcast of the guest on h1 once, because the path has no loop."""
    (domain,) = read_guests(paths, "h1")
    with ExitStack() as context:
        captures = {
            host: context.enter_context(capturing(paths, host, "br100", f"icmp and dst {BROADCAST}")) for host in HOSTS
        }
        paths.run("h1", ("sh", "-c", ENTER_CONTAINER, domain, "/bin/ping", "-c", "4", "-W", "1", BROADCAST))
    received = {host: re.findall(r"echo request, .*seq (\d+)", capture.text) for host, capture in captures.items()}
    assert all(received.values()), received
    assert {host: len(set(numbers)) for host, numbers in received.items()} == {
        host: len(numbers) for host, numbers in received.items()
    }


def test_the_check_of_paths_succeeds_over_aggregates_and_access_links(client: SbfClient, cluster: ClusterView) -> None:
    found = client.verify_cluster(cluster.key)
    assert (found.passed, len(found.paths)) == (True, len(HOSTS) * (len(HOSTS) - 1)), found


def test_another_cluster_does_not_change_the_path(paths: Lab, client: SbfClient, cluster: ClusterView) -> None:
    """The second cluster is within one site, but uses the same tree of links, whose root is sw1."""
    create(client, "other", "h1", "h2")
    assert read_vlans(paths) == {
        "sw1": ALL_HOSTS_VLANS["sw1"] | {"to2": "100-101", "to3": "100-101"},
        "sw2": {"to1": "100-101", "h1": "100-101"},
        "sw3": {"to1": "100-101", "lagh2": "100-101"},
        "psw": ALL_HOSTS_VLANS["psw"],
    }
    remove(client, "other")
    assert read_vlans(paths) == ALL_HOSTS_VLANS
    assert client.cluster("ring").state is ClusterState.ACTIVE


@pytest.mark.parametrize(("host", "port"), [("h3", "sw1:h3"), ("praha-h2", "psw:h2")])
def test_a_second_cluster_on_an_access_link_is_refused(
    client: SbfClient, cluster: ClusterView, host: str, port: str
) -> None:
    with pytest.raises(Conflict, match=f"needs access port {port}, but cluster ring uses this port"):
        client.put_cluster("second", ClusterRequest(spec=spec("h1", host)))


def test_frames_pass_without_one_cable_of_a_hosts_aggregate(paths: Lab, cluster: ClusterView) -> None:
    with disconnected(paths, "sw3", "h2a"):
        time.sleep(1)  # the time of ten checks of the link state (miimon)
        assert find_unreachable(paths, "h2") == []


def test_traffic_avoids_a_removed_link_of_the_ring(paths: Lab, client: SbfClient, cluster: ClusterView) -> None:
    with topology_without(paths, client, "sw1:to3"):
        moved = {
            "sw1": {"edge": "100", "to2": "100", "h3": "100"},
            "sw2": {"to1": "100", "h1": "100", "lag3": "100"},
            "sw3": {"lag2": "100", "lagh2": "100"},
            "psw": ALL_HOSTS_VLANS["psw"],
        }
        assert wait_for_vlans(paths, moved) == moved
        until(client, "ring", lambda view: view.state is ClusterState.ACTIVE)
        assert find_unreachable(paths, "h2") == []
        with disconnected(paths, "sw2", "lag3a"):
            time.sleep(1)  # the time of ten checks of the link state (miimon)
            assert find_unreachable(paths, "h2") == []
    assert wait_for_vlans(paths, ALL_HOSTS_VLANS) == ALL_HOSTS_VLANS
    assert find_unreachable(paths, "h2") == []


def test_the_second_uplink_replaces_a_removed_uplink(paths: Lab, client: SbfClient, cluster: ClusterView) -> None:
    with topology_without(paths, client, "h1:eth0"):
        moved = {
            "sw1": {"edge": "100", "to3": "100", "h3": "100"},
            "sw3": {"to1": "100", "h1": "100", "lagh2": "100"},
            "psw": ALL_HOSTS_VLANS["psw"],
            "sw2": {},
        }
        assert wait_for_vlans(paths, moved) == moved
        until(client, "ring", is_settled)
        assert find_unreachable(paths, "h1") == []
    assert wait_for_vlans(paths, ALL_HOSTS_VLANS) == ALL_HOSTS_VLANS
    until(client, "ring", is_settled)


def test_joining_and_leaving_members_keep_the_path(paths: Lab, client: SbfClient, cluster: ClusterView) -> None:
    """Before other clusters join, the path from h1 to h2 already passes sw1, which is connected to the core."""
    assert cluster.state is ClusterState.ACTIVE
    client.put_cluster("own", ClusterRequest(spec=of_network(1, "h1", "h2", name="own", vlan=105)))
    own = until(client, "own", lambda view: view.state is ClusterState.ACTIVE)
    without_members = read_vlans(paths)
    with pinging(paths, own, 0, "10.0.0.2") as pings:
        for first, hosts in ((11, ("praha-h1",)), (21, ("h2", "praha-h1"))):
            client.put_cluster(f"at-{first}", ClusterRequest(spec=of_network(first, *hosts, joins="own")))
            until(client, f"at-{first}", lambda view: view.state is ClusterState.ACTIVE)
        joined = read_vlans(paths)
        remove(client, "at-11")
        remove(client, "at-21")
    assert (pings.lost, pings.sent > 25) == ([], True)
    both = "100,105"
    assert without_members == ALL_HOSTS_VLANS | {
        "sw1": {"edge": "100", "to2": both, "to3": both, "h3": "100"},
        "sw2": {"to1": both, "h1": both},
        "sw3": {"to1": both, "lagh2": both},
    }
    assert joined == without_members | {
        "sw1": {"edge": both, "to2": both, "to3": both, "h3": "100"},
        "psw": {"h1": both, "h2": "100", "edge": both},
    }
    assert read_vlans(paths) == without_members
    remove(client, "own")


def is_settled(view: ClusterView) -> bool:
    return view.state is ClusterState.ACTIVE and all(
        one.progress in {"confirmed", "removed"} for one in view.placements
    )


def test_a_deleted_cluster_leaves_nothing(
    paths: Lab, client: SbfClient, before: Snapshot, cluster: ClusterView
) -> None:
    until(client, "ring", is_settled)
    remove(client, "ring")
    assert take_snapshot(paths, paths.topology) == before
