"""Tests of destinations with FQDNs on the real kernel, with a real DNS server.

One gateway has two clusters with the same addresses. Only the first cluster has the destination ``web.example.org``, at
port 8080.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.gateways.routing_world import ADMINISTRATOR, GATEWAY, SERVER, Run, Surroundings, make_segment, run_gateway
from support.kernel.mount_namespace import unshare_mounts
from support.programs.name_server import NameServer, use_name_server

from virtcloud.agent.gateway import fqdn_addresses, fqdn_answers
from virtcloud.model.outside_use import MAX_NAME_ADDRESSES

NAME = "web.example.org"
OTHERS = ("192.0.2.11", "192.0.2.12")
PRIVATE = "10.77.0.1"
TABLES = {"": "virtcloud_outside", "namespaces/c100": "virtcloud"}
"""The nftables table that contains the addresses of ``web.example.org``, for each of the two network namespaces."""


class NamedWorld:
    """The gateway, and the DNS server that it uses."""

    def __init__(self, world: Surroundings, stack: ExitStack) -> None:
        self.world = world
        folder = world.folder / "dns"
        folder.mkdir()
        use_name_server(folder)
        self.dns = NameServer(folder)
        stack.callback(self.dns.close)
        stack.enter_context(world.serving("server"))
        stack.enter_context(world.serving("admin"))
        stack.enter_context(world.serving(""))
        addresses = [f"address add {address}/24 dev eth0" for address in OTHERS]
        world.ip(*addresses, f"address add {PRIVATE}/32 dev eth0", computer="server")
        world.ip(f"route add {PRIVATE}/32 via {SERVER}")

    def request(self, *, networks: tuple[str, ...] = (), private: tuple[str, ...] = ()) -> None:
        self.world.segments = (make_segment(100, networks, (NAME,), private), make_segment(200, ("198.18.0.0/15",)))
        self.world.outside.receive(self.world.segments)
        self.world.namespaces.receive(self.world.segments)

    def resolve(self, *addresses: str) -> None:
        self.dns.answer({NAME: addresses})
        self.refresh()

    def refresh(self) -> None:
        self.world.fqdns.refresh()
        self.world.correct_sets()

    def start_anew(self, *addresses: str) -> None:
        """Delete all former addresses of the name at the gateway, and resolve the name to ``addresses``."""
        self.world.outside.receive(())
        self.request()
        self.resolve(*addresses)
        assert self.world.reconcile() == []

    def fetch(self, *addresses: str) -> list[str]:
        """Connect from the guest to each address. Return one item for each address, in the same order.

        An item is the source address that the server saw, or ``none`` if no server accepted the connection.
        """
        return [self.world.fetch(address) for address in addresses]

    def list_sets(self, namespace: str = "") -> set[str]:
        listed = json.loads(self.world.run(namespace, "nft", "--json", "list", "sets", "inet"))["nftables"]
        sets = [item["set"] for item in listed if "set" in item and item["set"]["table"] == TABLES[namespace]]
        return {element for one in sets if one["name"].startswith("fqdns") for element in one.get("elem", ())}

    @property
    def error(self) -> str:
        names = [name for use in self.world.outside.read_uses() for name in use.names]
        return names[0].error or ""


Named = Callable[[Callable[[NamedWorld], object]], Any]


@pytest.fixture(scope="module")
def named_gateway(unshare: Callable[[], None]) -> Iterator[Named]:
    made: list[NamedWorld] = []

    def enter() -> None:
        unshare()
        unshare_mounts()

    def prepare(world: Surroundings, stack: ExitStack) -> None:
        world.ip("link set lo up")
        made.append(NamedWorld(world, stack))
        made[0].request()

    def run_named(run: Run) -> Named:
        return lambda work: run(lambda _: work(made[0]))

    with run_gateway(enter, prepare) as run:
        yield run_named(run)


@pytest.fixture
def gateway(named_gateway: Named) -> Named:
    """Delete the name's former addresses, and resolve the name to the server's address.

    Return the function of `named_gateway`.
    """
    named_gateway(lambda world: world.start_anew(SERVER))
    return named_gateway


def test_a_guest_reaches_the_addresses_of_a_name(gateway: Named) -> None:
    assert gateway(lambda world: world.fetch(SERVER, *OTHERS)) == [GATEWAY, "none", "none"]


def test_another_cluster_does_not_reach_the_name(gateway: Named) -> None:
    assert gateway(lambda world: world.world.fetch(SERVER, computer="guest200")) == "none"


def test_a_new_answer_adds_its_addresses_and_keeps_former_ones(gateway: Named) -> None:
    def work(world: NamedWorld) -> object:
        world.resolve(OTHERS[0])
        return world.fetch(SERVER, *OTHERS)

    assert gateway(work) == [GATEWAY, GATEWAY, "none"]


def test_a_former_address_is_removed_after_some_time(gateway: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(world: NamedWorld) -> object:
        world.resolve(OTHERS[0])
        monkeypatch.setattr(fqdn_answers, "KEEP_S", 0)
        world.refresh()
        return world.fetch(SERVER, OTHERS[0])

    assert gateway(work) == ["none", GATEWAY]


def test_a_new_answer_changes_no_counter(gateway: Named) -> None:
    def work(world: NamedWorld) -> object:
        former = world.world.outside.read_uses()[0].connections
        world.fetch(SERVER)
        world.resolve(OTHERS[0])
        world.fetch(OTHERS[0])
        return world.world.outside.read_uses()[0].connections - former

    assert gateway(work) == 2


def test_an_address_in_a_network_is_counted_once(gateway: Named) -> None:
    """The destination contains the name and also the network of the name's address.

    The number of TCP acknowledgements varies. So the test accepts up to 1.5 times the bytes that are counted for a
    destination with only the name.
    """

    def count(world: NamedWorld, *networks: str) -> int:
        world.request(networks=networks)
        assert world.world.reconcile() == []
        former = world.world.outside.read_uses()[0].received_bytes
        assert world.fetch(SERVER) == [GATEWAY]
        return world.world.outside.read_uses()[0].received_bytes - former

    both, named = gateway(lambda world: [count(world, "192.0.2.0/24"), count(world)])
    assert both < 1.5 * named


FORBIDDEN = {
    "the gateway": GATEWAY,
    "the gateway's other address": "198.51.100.1",
    "the management network": ADMINISTRATOR,
    "behind the management network": "203.0.113.9",
    "the cluster's link": "100.64.0.200",
    "another cluster's link": "100.64.1.145",
    "loopback": "127.0.0.1",
    "metadata": "169.254.169.254",
    "metadata of another cloud": "100.100.100.200",
    "multicast": "224.0.0.251",
    "broadcast": "192.0.2.255",
    "private": PRIVATE,
    "IPv6 loopback": "::1",
    "IPv6 link-local": "fe80::1",
    "IPv6 link of a cluster": "fd76:6372:7463:6c64::c9",
    "IPv6 private": "fd00:1::1",
    "IPv4-mapped": "::ffff:127.0.0.1",
    "NAT64 of loopback": "64:ff9b::7f00:1",
    "6to4 of loopback": "2002:7f00:1::1",
}


def test_dns_rebinding_admits_no_forbidden_address(gateway: Named) -> None:
    def work(world: NamedWorld) -> object:
        world.world.ip(f"route replace 203.0.113.0/24 via {ADMINISTRATOR}")
        world.resolve(SERVER, *FORBIDDEN.values())
        admitted = [world.list_sets(namespace) for namespace in TABLES]
        return admitted, world.fetch(GATEWAY, "198.51.100.1", ADMINISTRATOR, PRIVATE), world.fetch(SERVER)

    assert gateway(work) == ([{SERVER}, {SERVER}], ["none"] * 4, [GATEWAY])


def test_the_addresses_of_sbf_are_not_admitted(gateway: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's settings contain SBF's name, and SBF is in the outside network."""

    def work(world: NamedWorld) -> object:
        monkeypatch.setattr(world.world.fqdns, "_sbf_host", "sbf.example.org")
        world.dns.answer({"sbf.example.org": [OTHERS[0]], NAME: [SERVER, *OTHERS]})
        world.refresh()
        monkeypatch.undo()
        return world.list_sets(), world.error

    assert gateway(work) == ({SERVER, OTHERS[1]}, f"{OTHERS[0]} is an address of SBF")


def test_new_addresses_are_refused_until_sbfs_addresses_are_known(
    gateway: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent cannot resolve SBF's name, so each new address might be an address of SBF."""

    def work(world: NamedWorld) -> object:
        monkeypatch.setattr(world.world.fqdns, "_sbf_host", "sbf.example.org")
        monkeypatch.setattr(world.world.fqdns, "_sbf_addresses", frozenset())
        world.resolve(SERVER, OTHERS[0])
        monkeypatch.undo()
        return world.list_sets(), world.error

    error = "the addresses of SBF are unknown: this gateway cannot resolve sbf.example.org"
    assert gateway(work) == ({SERVER}, error)


def test_a_listed_private_network_is_admitted(gateway: Named) -> None:
    def work(world: NamedWorld) -> object:
        world.request(private=("10.77.0.0/16",))
        world.resolve(SERVER, PRIVATE, "10.78.0.1")
        return world.list_sets(), world.fetch(PRIVATE), world.error

    error = "10.78.0.1 is private, and `private_networks` does not contain it"
    assert gateway(work) == ({SERVER, PRIVATE}, [GATEWAY], error)


def test_the_number_of_addresses_of_a_name_is_limited(gateway: Named) -> None:

    def work(world: NamedWorld) -> object:
        world.resolve(SERVER, *(f"192.0.{third}.{last}" for third in (3, 4) for last in range(1, 200)))
        return len(world.list_sets()), world.fetch(SERVER), world.error

    error = f"the name has more than {MAX_NAME_ADDRESSES} addresses; the further addresses are not admitted"
    assert gateway(work) == (MAX_NAME_ADDRESSES, [GATEWAY], error)


def test_a_hanging_resolver_changes_nothing(gateway: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fqdn_addresses, "LIMIT_S", 0.3)

    def work(world: NamedWorld) -> object:
        with world.dns.hanging():
            world.refresh()
        return world.fetch(SERVER), world.error

    assert gateway(work) == ([GATEWAY], "the resolver did not answer within 0.3 s")


def test_a_deleted_name_is_reported_and_its_addresses_stay_temporarily(gateway: Named) -> None:
    """The gateway's resolver has the search domain ``example.org``, which must not be appended to the name."""

    def work(world: NamedWorld) -> object:
        world.dns.answer({f"{NAME}.example.org": [OTHERS[0]]})
        world.refresh()
        return world.list_sets(), world.fetch(SERVER), world.error

    assert gateway(work) == ({SERVER}, [GATEWAY], "DNS has no such name")


def test_dns_answers_are_read_without_privileges(gateway: Named) -> None:
    """The program that resolves names runs as the user ``nobody``, without capabilities."""

    def work(world: NamedWorld) -> object:
        with world.dns.hanging(), fqdn_addresses.start_program() as program:
            assert program.stdin is not None
            program.stdin.write(json.dumps([NAME]))
            program.stdin.close()
            status = Path(f"/proc/{program.pid}/status")
            deadline = time.monotonic() + 10
            while "NoNewPrivs:\t1" not in status.read_text() and time.monotonic() < deadline:
                time.sleep(0.02)
            found = status.read_text()
            program.kill()
        return [re.findall(rf"{key}:\s+(\w+)", found) for key in ("Uid", "Gid", "CapEff", "CapPrm", "NoNewPrivs")]

    assert gateway(work) == [["65534"], ["65534"], ["0" * 16], ["0" * 16], ["1"]]


FLUSHES = {
    "set": ("", "nft flush set inet virtcloud_outside fqdns4.web"),
    "element": ("", f"nft add element inet virtcloud_outside fqdns4.web {{ {ADMINISTRATOR} }}"),
    "inner set": ("namespaces/c100", "nft flush set inet virtcloud fqdns4.web"),
    "ruleset": ("", "nft flush ruleset"),
    "inner ruleset": ("namespaces/c100", "nft flush ruleset"),
}


@pytest.mark.parametrize("fault", FLUSHES)
def test_drift_of_the_addresses_is_corrected(gateway: Named, fault: str) -> None:

    def work(world: NamedWorld) -> object:
        namespace, command = FLUSHES[fault]
        world.world.run(namespace, *command.split())
        world.world.outside.restore()
        world.world.correct_sets()
        left = world.world.reconcile()
        return left, [world.list_sets(one) for one in TABLES], world.fetch(SERVER)

    assert gateway(work) == ([], [{SERVER}, {SERVER}], [GATEWAY])


def test_a_restarted_agent_keeps_the_addresses_until_an_answer(gateway: Named) -> None:
    def work(world: NamedWorld) -> object:
        world.world.start_agent()
        world.request()
        world.world.correct_sets()
        steps = world.world.find_steps()
        return steps, [world.list_sets(namespace) for namespace in TABLES], world.fetch(SERVER)

    assert gateway(work) == ([], [{SERVER}, {SERVER}], [GATEWAY])


def test_after_a_reboot_the_last_answers_are_admitted(gateway: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the reboot, the kernel has no tables, and the DNS server does not answer yet."""
    monkeypatch.setattr(fqdn_addresses, "LIMIT_S", 0.3)

    def work(world: NamedWorld) -> object:
        world.world.namespaces.ensure_no_namespace("c100")
        world.world.run("", "nft", "flush", "ruleset")
        world.world.start_agent()
        world.request()
        with world.dns.hanging():
            world.refresh()
        return world.world.reconcile(), world.fetch(SERVER)

    assert gateway(work) == ([], [GATEWAY])


def test_a_removed_destination_leaves_no_addresses(gateway: Named) -> None:
    """The test must run last, because it changes the gateway that all tests of this file use."""

    def work(world: NamedWorld) -> object:
        world.world.segments = (make_segment(100, ()), make_segment(200))
        world.world.outside.receive(world.world.segments)
        left = world.world.reconcile()
        return left, world.list_sets(), (world.world.folder / "state" / "fqdns.json").exists()

    assert gateway(work) == ([], set(), False)
