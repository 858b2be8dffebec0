"""Sites connected by real provider edges: EVPN with FRR, a service VLAN for each cluster, dedicated circuits."""

import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.edge_claims import KernelClaims
from support.lab.capture import capturing
from support.lab.clusters import active, create, ended, pings, remove, until
from support.lab.edge import OnKernel

from virtcloud.agent.network import names
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import (
    Snapshot,
    read_forwarding,
    read_guests,
    read_interfaces,
    read_switch_vlans,
    take_snapshot,
)
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Mac, Name
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

SITES = ("brno", "praha", "plzen")
ABSENT_ADDRESS = "10.0.0.77"
PERMANENT = "permanent"
KILLS = 2
POLL_S = 0.5
"""The pause in seconds between two checks of a condition. Each check uses processor time that the lab needs."""


@pytest.fixture(scope="module")
def client(edges: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{edges.sbf_socket}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def new(edges: Lab) -> Snapshot:
    return take_snapshot(edges, edges.topology)


@pytest.fixture
def before(client: SbfClient, new: Snapshot) -> Iterator[Snapshot]:
    """The snapshot of the lab before any cluster was created.

    After the test, all clusters except the permanent cluster are deleted.
    """
    yield new
    remove(client, *(view.key for view in client.clusters() if view.key != PERMANENT))


@pytest.fixture(scope="module")
def permanent(client: SbfClient, new: Snapshot) -> Iterator[ClusterView]:
    """A cluster at two sites of the EVPN fabric. The cluster exists until the last test of this module has ended."""
    yield create(client, PERMANENT, spec("praha", "plzen"))
    remove(client, PERMANENT)


def spec(*sites: str, macs: bool = False, **changes: object) -> ClusterSpec:
    """Return a spec with one guest at each site. If ``macs`` is true, the guests have fixed MAC addresses."""
    guests = tuple(
        Guest(
            name=f"n{i}",
            host=f"{site}-h1",
            image="busybox",
            memory_mb=32,
            addresses=(f"10.0.0.{i}/24",),
            mac=Mac(f"02:00:00:00:00:0{i}") if macs else None,
        )
        for i, site in enumerate(sites, 1)
    )
    return ClusterSpec.model_validate({"owner": "alice", "guests": guests, "deadline_s": 60, **changes})


def service_id(view: ClusterView) -> int:
    assert view.joined is not None
    assert view.joined.service is not None
    return view.joined.service


def all_reach_each_other(edges: Lab, view: ClusterView) -> bool:
    addresses = [guest.addresses[0].partition("/")[0] for guest in view.spec.guests]
    pairs = itertools.combinations(range(len(addresses)), 2)
    return all(
        pings(edges, view, n, "-c", "4", "-i", "0.3", "-W", "3", "-s", "1472", addresses[other]) for n, other in pairs
    )


@pytest.fixture(scope="module")
def kernel(edges: Lab) -> Iterator[OnKernel]:
    made = OnKernel(edges, "plzen-pe1")
    made.make()
    yield made
    made.remove()


class TestOnKernel(KernelClaims):
    """The tests of ``KernelClaims`` on a real kernel."""

    @pytest.fixture
    def bench(self, kernel: OnKernel) -> Iterator[OnKernel]:
        yield kernel
        kernel.empty()


def test_three_sites_with_disjoint_pools_form_one_segment(edges: Lab, client: SbfClient, before: Snapshot) -> None:
    one, two = (create(client, key, spec(*SITES, macs=True)) for key in ("one", "two"))
    pools = {site.name: site.pool for site in client.sites()}
    assert all(vlan in pools[site] for view in (one, two) for site, vlan in view.vlans.items())
    assert len(set(one.vlans.values())) == 3

    assert all_reach_each_other(edges, one)
    assert all_reach_each_other(edges, two)

    vni = service_id(one)
    learned = {
        (entry["mac"], entry["dst"])
        for entry in read_forwarding(edges, "brno-pe1")
        if entry["ifname"] == f"vni{vni}" and "extern_learn" in entry["flags"] and "dst" in entry
    }
    assert learned == {("02:00:00:00:00:02", "10.255.0.2"), ("02:00:00:00:00:03", "10.255.0.3")}

    who_has = f"arp and host {ABSENT_ADDRESS}"
    with (
        capturing(edges, "overlay", "brno", "udp port 4789") as tunnels,
        capturing(edges, "praha-h1", f"br{one.vlans['praha']}", who_has) as same_cluster,
        capturing(edges, "praha-h1", f"br{two.vlans['praha']}", who_has) as other_cluster,
    ):
        pings(edges, one, 0, "-c", "2", "-W", "1", ABSENT_ADDRESS)
    pattern = (
        rf"(10\S+)\.\d+ > (\S+)\.4789: VXLAN, flags \[I\] \(0x08\), vni (\d+)\n.*who-has {re.escape(ABSENT_ADDRESS)} "
    )
    assert set(re.findall(pattern, tunnels.text)) == {
        ("10.255.0.1", "10.255.0.2", str(vni)),
        ("10.255.0.1", "10.255.0.3", str(vni)),
    }
    assert (ABSENT_ADDRESS in same_cluster.text, ABSENT_ADDRESS in other_cluster.text) == (True, False)

    remove(client, "one", "two")
    assert take_snapshot(edges, edges.topology) == before


def test_identical_clusters_work_side_by_side(edges: Lab, client: SbfClient, before: Snapshot) -> None:
    """The guests of one cluster have the same MAC addresses as the guests of the other cluster.

    The core has a MAC table for each service VLAN (docs/decisions/0006).
    """
    one, two = (create(client, key, spec("brno", "praha", macs=True)) for key in ("one", "two"))
    assert {service_id(one), service_id(two)} == {2000, 2001}
    with capturing(edges, "stags", "br0", "icmp or vlan") as core:
        for view in (one, two, one):
            assert all_reach_each_other(edges, view)
    tags = set(re.findall(r"ethertype 802\.1Q-QinQ \(0x88a8\).*?: (vlan \d+, p 0, ethertype \S+)", core.text))
    assert {tag.split(",")[0] for tag in tags} == {"vlan 2000", "vlan 2001"}
    assert not [tag for tag in tags if "802.1Q" in tag], "the customer's tag was not removed"
    remove(client, "one", "two")
    assert take_snapshot(edges, edges.topology) == before


def test_a_dedicated_circuit_needs_one_vlan_id_for_both_sites(edges: Lab, client: SbfClient, before: Snapshot) -> None:
    pools = {site: client.pool(site) for site in ("brno", "plzen")}
    for site, pool in pools.items():
        client.put_pool(site, Pool.model_validate({"vlans": f"{pool.vlans},400"}))
    view = create(client, "direct", spec("brno", "plzen"))
    assert dict(view.vlans) == {"brno": 400, "plzen": 400}
    assert view.joined is not None
    assert (view.joined.transport, view.joined.service) == ("circuit", None)
    assert all_reach_each_other(edges, view)
    remove(client, "direct")
    for site, pool in pools.items():
        client.put_pool(site, pool)
    assert take_snapshot(edges, edges.topology) == before


def test_an_unreachable_edge_quarantines_the_vlan_ids(edges: Lab, client: SbfClient, before: Snapshot) -> None:
    set_management_port(edges, "praha-pe1", "down")
    try:
        client.put_cluster("cut", ClusterRequest(spec=spec("praha", "plzen", deadline_s=2)))
        view = until(client, "cut", lambda seen: seen.state in ENDED_STATES | LEAVING_STATES)
        assert "praha-pe1" in view.reason
        vlan = view.vlans["praha"]
        assert vlan not in next(site for site in client.sites() if site.name == "praha").free
    finally:
        set_management_port(edges, "praha-pe1", "up")
    assert until(client, "cut", ended).state is ClusterState.FAILED
    assert take_snapshot(edges, edges.topology) == before


def test_an_edge_is_reconciled_after_its_restart(edges: Lab, client: SbfClient, before: Snapshot) -> None:
    """A cluster is deleted while the edge of one site is down."""
    create(client, "back", spec("praha", "plzen"))
    edges.service("praha-pe1", "sshd").kill()
    set_management_port(edges, "praha-pe1", "down")
    try:
        client.delete_cluster("back")
        wait_until(lambda: read_switch_vlans(edges, "plzen-pe1") == {})
        assert client.cluster("back").state is ClusterState.DRAINING
        assert read_switch_vlans(edges, "praha-pe1") != {}
    finally:
        set_management_port(edges, "praha-pe1", "up")
        edges.service("praha-pe1", "sshd").start()
    until(client, "back", ended)
    assert take_snapshot(edges, edges.topology) == before


def test_sbf_killed_at_random_moments_reconciles_after_each_restart(
    edges: Lab, client: SbfClient, before: Snapshot
) -> None:
    generator = random.Random(7432)
    sbf = edges.service("station", "sbf")
    for round_number in range(KILLS):
        creating = round_number % 2 == 0
        request = ClusterRequest(spec=spec(*SITES), attempt=round_number // 2)
        with ThreadPoolExecutor() as pool:
            call = (
                pool.submit(client.put_cluster, "k", request) if creating else pool.submit(client.delete_cluster, "k")
            )
            time.sleep(generator.uniform(0, 1.5))  # a random moment
            sbf.kill()
            assert call.exception() is None or isinstance(call.exception(), ServiceUnreachable)
        sbf.start()
        if creating:
            client.put_cluster("k", request)
            view = until(client, "k", active)
            assert {site: read_switch_vlans(edges, f"{site}-pe1") for site in SITES} == {
                site: {"ac": str(vlan), f"vni{service_id(view)}": str(vlan)} for site, vlan in view.vlans.items()
            }
        else:
            remove(client, "k")
    assert take_snapshot(edges, edges.topology) == before


def test_guests_have_the_links_mtu_minus_the_vxlan_headers(edges: Lab, permanent: ClusterView) -> None:
    """The overlay's links have an MTU of 1500 bytes. VXLAN's headers take 50 of these bytes."""
    domain = next(name for name in read_guests(edges, "praha-h1") if permanent.id in name)
    command = ("sh", "-c", ENTER_CONTAINER, domain, "/bin/ip", "link", "show", "eth0")
    assert " mtu 1450 " in edges.run("praha-h1", command, check=True).stdout
    vlan = permanent.vlans[Name("praha")]
    for name in (f"br{vlan}", f"eth0.{vlan}", names.guest_port_name(permanent.id, "n1", vlan)):
        assert " mtu 1450 " in edges.run("praha-h1", ["ip", "link", "show", name], check=True).stdout
    assert permanent.joined is not None
    assert permanent.joined.mtu == 1450


def test_the_check_of_paths_succeeds_over_the_overlay(client: SbfClient, permanent: ClusterView) -> None:
    found = client.verify_cluster(permanent.key)
    assert (found.passed, found.mtu) == (True, 1450), found


def test_a_restart_of_bgpd_restores_the_connection(edges: Lab, client: SbfClient, permanent: ClusterView) -> None:
    assert all_reach_each_other(edges, permanent)
    bgpd = edges.service("praha-pe1", "bgpd")
    bgpd.kill()
    wait_until(lambda: not pings(edges, permanent, 0, "-c", "1", "-W", "1", "10.0.0.2"))
    bgpd.start()
    wait_until(lambda: pings(edges, permanent, 0, "-c", "1", "-W", "1", "10.0.0.2"))
    assert active(client.cluster(PERMANENT))
    assert not [row for row in client.audit(element="praha-pe1") if row.what == "element_drifted"]


def test_a_removed_vxlan_device_is_restored(edges: Lab, client: SbfClient, permanent: ClusterView) -> None:
    device = f"vni{service_id(permanent)}"
    edges.run("plzen-pe1", ["ip", "link", "del", device], check=True)
    wait_until(lambda: device in read_interfaces(edges, "plzen-pe1"))
    until(client, PERMANENT, active)
    assert all_reach_each_other(edges, permanent)


def set_management_port(lab: Lab, edge: str, state: str) -> None:
    lab.run(edge, ["ip", "link", "set", "mgmt0", state], check=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition was not fulfilled within a minute"
        time.sleep(POLL_S)
