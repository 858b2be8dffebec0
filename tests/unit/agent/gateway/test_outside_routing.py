"""Tests of routers on the real kernel.

All tests use one gateway with two identical clusters, an outside network, and a management network. The clusters may
reach port 8080 of any address. So only the gateway's own rules protect forbidden addresses.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.gateways.routing_world import (
    ADMINISTRATOR,
    GATEWAY,
    ROUTER,
    SERVER,
    Run,
    Surroundings,
    make_segment,
    run_gateway,
)

from virtcloud.agent.gateway import outside_links
from virtcloud.agent.gateway.outside_difference import find_outside_faults


@pytest.fixture(scope="module")
def gateway(unshare: Callable[[], None]) -> Iterator[Run]:
    """Create the gateway and both clusters' routers. Yield a function that runs code in the gateway's namespace."""

    def prepare(made: Surroundings, stack: ExitStack) -> None:
        for server in ("server", "admin", "", "guest200"):
            stack.enter_context(made.serving(server))
        stack.enter_context(made.serving("server", 9090))

    with run_gateway(unshare, prepare) as run:
        yield run


def test_a_guest_reaches_a_destination_from_the_gateways_address(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(SERVER, limit_s=5)) == GATEWAY


def test_both_identical_clusters_reach_the_destination(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(SERVER, computer="guest200", limit_s=5)) == GATEWAY


def test_a_guest_reaches_no_other_port(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(SERVER, 9090)) == "none"


@pytest.mark.parametrize("address", [GATEWAY, "198.51.100.1", "100.64.0.200", "100.64.1.144", ROUTER])
def test_a_guest_reaches_no_service_of_the_gateway(gateway: Run, address: str) -> None:
    assert gateway(lambda world: world.fetch(address)) == "none"


def test_a_guest_does_not_reach_the_management_network(gateway: Run) -> None:
    assert gateway(lambda world: world.fetch(ADMINISTRATOR)) == "none"


def test_a_guest_reaches_no_metadata_service_outside(gateway: Run) -> None:
    def work(world: Surroundings) -> str:
        world.ip("address replace 169.254.169.254/32 dev eth0", computer="server")
        world.ip(f"route replace 169.254.169.254/32 via {SERVER}")
        return world.fetch("169.254.169.254")

    assert gateway(work) == "none"


def test_a_guest_does_not_reach_another_cluster(gateway: Run) -> None:
    """Each cluster's namespace has a link to the gateway. The guest tries the namespaces' addresses on both links."""
    assert gateway(lambda world: [world.fetch(address) for address in ("100.64.1.145", "100.64.0.201")]) == ["none"] * 2


@pytest.mark.parametrize("address", ["10.0.0.5", ROUTER, "100.64.1.145"])
def test_nobody_outside_reaches_a_guest(gateway: Run, address: str) -> None:
    """An attacker outside sends packets for internal addresses to the gateway, which has routes to them."""

    def work(world: Surroundings) -> str:
        if address.startswith("10."):
            world.ip("route replace 10.0.0.0/24 via 100.64.1.145")
        return world.fetch(address, computer="server")

    assert gateway(work) == "none"


@pytest.mark.parametrize(
    ("computer", "address", "port"),
    [
        ("guest100", SERVER, 9090),
        ("guest100", ADMINISTRATOR, 8080),
        ("guest100", "100.64.1.145", 8080),
        ("server", "10.0.0.5", 8080),
        ("admin", "10.0.0.5", 8080),
    ],
)
def test_a_broken_filter_in_a_namespace_opens_nothing(gateway: Run, computer: str, address: str, port: int) -> None:
    """Even if the clusters' filters accept all packets, the main namespace's rules drop the forbidden packets."""

    def work(world: Surroundings) -> str:
        world.ip("route replace 10.0.0.0/24 via 100.64.1.145")
        for path in ("namespaces/c100", "namespaces/c200"):
            for chain in ("input", "forward"):
                world.run(path, "nft", "flush", "chain", "inet", "virtcloud", chain)
                world.run(path, "nft", f"add chain inet virtcloud {chain} {{ policy accept; }}")
        found = world.fetch(address, port, computer)
        world.reconcile()
        return found

    assert gateway(work) == "none"


def test_a_guest_with_a_foreign_source_address_reaches_nothing(gateway: Run) -> None:
    def work(world: Surroundings) -> str:
        world.ip("address add 172.16.0.9/32 dev eth0", computer="guest100")
        world.ip(f"route replace {SERVER}/32 via {ROUTER} src 172.16.0.9", computer="guest100")
        found = world.fetch(SERVER)
        world.ip(f"route delete {SERVER}/32", "address delete 172.16.0.9/32 dev eth0", computer="guest100")
        return found

    assert gateway(work) == "none"


FAULTS = {
    "flush": ("", "nft flush ruleset"),
    "inner flush": ("namespaces/c100", "nft flush ruleset"),
    "forwarding": ("", "sysctl -w net.ipv4.conf.outside0.forwarding=0"),
    "rule": ("", "nft insert rule inet virtcloud_outside forward accept"),
    "link": ("", "ip link delete vu100"),
    "link down": ("", "ip link set vu100 down"),
    "address": ("", "ip address flush dev vu100"),
    "route": ("namespaces/c100", "ip route delete default"),
    "inner routes": ("namespaces/c100", "ip route flush table main"),
    "all inner routes": ("namespaces/c100", "ip route flush table all"),
    "inner forwarding": ("namespaces/c100", "sysctl -w net.ipv4.ip_forward=0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_drift_of_a_router_is_corrected(gateway: Run, fault: str) -> None:
    def work(world: Surroundings) -> object:
        world.run(FAULTS[fault][0], *FAULTS[fault][1].split())
        remaining = world.reconcile()
        return world.applied > 0, remaining, world.fetch(SERVER, limit_s=5), world.fetch(ADMINISTRATOR)

    assert gateway(work) == (True, [], GATEWAY, "none")


def test_a_missing_outside_interface_is_a_fault_until_it_exists(gateway: Run) -> None:
    def find_faults(world: Surroundings) -> list[str]:
        observed = world.outside.read(world.kernel.list_interfaces())
        return [fault for segment in world.segments for fault in find_outside_faults(segment, observed)]

    def work(world: Surroundings) -> object:
        world.ip("link set outside0 down", "link set outside0 name moved", "link delete vu100")
        remaining = world.reconcile()
        faults = find_faults(world)
        world.ip("link set moved name outside0", "link set outside0 up")
        world.run("", "sysctl", "-w", "net.ipv4.conf.outside0.forwarding=0")  # the value of a new interface
        return remaining, faults, world.reconcile(), find_faults(world), world.fetch(SERVER, limit_s=5)

    missing = "the interface outside0, named by `outside` of this gateway in the topology, is missing"
    remedy = "add or rename the interface, or correct the topology"
    assert gateway(work) == ([], [f"{missing}: {remedy}"] * 2, [], [], GATEWAY)


def test_a_network_has_a_limited_number_of_connections(gateway: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_links, "CONNECTIONS", 0)

    def work(world: Surroundings) -> object:
        world.reconcile()
        return world.fetch(SERVER)

    assert gateway(work) == "none"
    monkeypatch.undo()
    assert gateway(Surroundings.reconcile) == []


@pytest.mark.parametrize("address", [GATEWAY, "100.64.0.200", "198.51.100.1", "203.0.113.77"])
def test_a_flush_without_agent_opens_no_gateway_address(gateway: Run, address: str) -> None:
    """The filter in the cluster's namespace drops packets to addresses that the gateway had before the flush."""

    def work(world: Surroundings) -> str:
        world.ip("address replace 203.0.113.77/32 dev lo")  # added after the namespaces were created
        world.namespaces.receive(world.segments)
        world.run("", "nft", "flush", "ruleset")
        found = world.fetch(address)
        world.reconcile()
        return found

    assert gateway(work) == "none"


def test_use_is_counted_for_each_network_and_destination(gateway: Run) -> None:

    def work(world: Surroundings) -> list[tuple[str, str, int, bool]]:
        former = {use.network: use for use in world.outside.read_uses()}
        assert world.fetch(SERVER, limit_s=5) == GATEWAY
        world.segments = (make_segment(100, ("192.0.2.0/24",)), world.segments[1])
        world.reconcile()
        uses = [(use, former[use.network]) for use in world.outside.read_uses()]
        return [
            (use.network, use.destination, use.connections - old.connections, use.received_bytes > old.received_bytes)
            for use, old in uses
        ]

    assert gateway(work) == [("c100", "web", 1, True), ("c200", "web", 0, False)]


def test_a_removed_network_leaves_no_counters(gateway: Run) -> None:
    def work(world: Surroundings) -> object:
        kept, world.segments = world.segments, world.segments[1:]
        left = world.reconcile()
        networks = {use.network for use in world.outside.read_uses()}
        world.segments = kept
        world.reconcile()
        return left, networks

    assert gateway(work) == ([], {"c200"})


def test_a_network_that_loses_its_router_leaves_nothing(gateway: Run) -> None:
    """The test must run last, because it changes the gateway that all tests of this file use."""

    def work(world: Surroundings) -> object:
        world.segments = (make_segment(100, ()), make_segment(200, ()))
        left = world.reconcile()
        found = [interface.name for interface in world.kernel.list_interfaces() if interface.name.startswith("vu")]
        return left, found, world.run("", "nft", "list", "tables", "inet"), world.fetch(SERVER)

    assert gateway(work) == ([], [], "", "none")
