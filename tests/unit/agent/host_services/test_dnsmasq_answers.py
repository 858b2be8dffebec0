import shutil
from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise, DHCP6OptIA_NA
from scapy.layers.inet6 import ICMPv6ND_RA, ICMPv6ND_RS, ICMPv6NDOptPrefixInfo, IPv6
from scapy.layers.l2 import ARP, Ether
from support.hosts.dnsmasq_world import (
    BROADCAST,
    GUEST4,
    GUEST6,
    GUEST_MAC,
    LINK_LOCAL,
    NOBODY,
    SERVER,
    TEST_FRAME,
    World,
    discover,
    from_server,
    is_offer,
    make_runner,
    make_segment,
    resolve,
    solicit,
)
from support.kernel.network_namespaces import Run

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")


@pytest.fixture
def in_world(in_namespace: Run) -> Callable[..., Any]:
    return make_runner(in_namespace)


def test_a_guest_gets_the_addresses_of_the_spec(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        guest = world.bridges[0].guest
        offer = guest.ask(discover(), is_offer)
        advertisement = guest.ask(solicit(), lambda frame: DHCP6_Advertise in frame)
        assert offer
        assert advertisement
        options = {option[0]: option[1] for option in offer[DHCP].options if isinstance(option, tuple)}
        (address,) = advertisement[DHCP6OptIA_NA].ianaopts
        found = [options[name] for name in ("hostname", "domain", "name_server", "classless_static_routes")]
        return offer[BOOTP].yiaddr, *found, address.addr

    route = [f"{SERVER}/32:{NOBODY}"]
    assert in_world(work, make_segment()) == (GUEST4, b"n1", b"demo.internal", SERVER, route, GUEST6)


def test_a_router_advertisement_announces_dhcp_and_no_router(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        request = Ether(src=GUEST_MAC, dst="33:33:00:00:00:02") / IPv6(src=LINK_LOCAL, dst="ff02::2") / ICMPv6ND_RS()
        frame = world.bridges[0].guest.ask(request, lambda frame: ICMPv6ND_RA in frame)
        assert frame
        prefix = frame[ICMPv6NDOptPrefixInfo]
        return frame[ICMPv6ND_RA].M, frame[ICMPv6ND_RA].routerlifetime, prefix.prefix, prefix.L, prefix.A

    assert in_world(work, make_segment()) == (1, 0, "fd00::", 1, 0)


def test_identical_clusters_get_their_own_answers(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        return [
            (offer and offer[BOOTP].yiaddr, resolve(bridge.guest, "n2.demo.internal"))
            for bridge in world.bridges
            for offer in [bridge.guest.ask(discover(), is_offer)]
        ]

    found = in_world(work, make_segment(), make_segment("c2", 101, "10.0.0.7"))
    assert found == [(GUEST4, "10.0.0.6"), (GUEST4, "10.0.0.7")]


def test_no_frame_of_the_server_leaves_the_host(in_world: Callable[..., Any]) -> None:
    """The bridge forwards the guest's broadcasts to the switch, but must not forward the server's answers."""

    def work(world: World) -> object:
        (bridge,) = world.bridges
        bridge.guest.ask(discover(), is_offer)
        bridge.guest.send(Ether(src=GUEST_MAC, dst=BROADCAST) / ARP(hwsrc=GUEST_MAC, psrc=GUEST4, pdst=SERVER))
        bridge.guest.receive(lambda frame: ARP in frame and frame[ARP].op == 2)
        bridge.guest.ask(solicit(), from_server)
        bridge.guest.send(Ether(src=GUEST_MAC, dst=BROADCAST, type=TEST_FRAME) / b"last")
        received = []
        while (frame := bridge.switch.receive(lambda _: True)) is not None and frame.type != TEST_FRAME:
            received.append(frame)
        return frame is not None, any(DHCP in frame for frame in received), any(map(from_server, received))

    assert in_world(work, make_segment()) == (True, True, False)


def test_a_request_from_the_uplink_does_not_reach_the_server(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        (bridge,) = world.bridges
        bridge.switch.send(discover())
        bridge.switch.send(solicit())
        arrived = bridge.guest.receive(lambda frame: DHCP in frame) is not None  # the bridge forwards the request
        return arrived, bridge.switch.receive(from_server, 1.0), bridge.guest.ask(discover(), is_offer) is not None

    assert in_world(work, make_segment()) == (True, None, True)


def test_an_unknown_computer_gets_no_address(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        guest = world.bridges[0].guest
        guest.send(discover("02:00:00:00:00:99"))
        first = guest.ask(discover(), is_offer)
        return first and first[BOOTP].chaddr[:6].hex(":")

    assert in_world(work, make_segment()) == GUEST_MAC


def test_a_running_server_reads_new_names_without_a_restart(in_world: Callable[..., Any]) -> None:
    """While a guest has a lease, dnsmasq 2.90 crashes if it rereads a file of reservations."""

    def work(world: World) -> object:
        guest, pid = world.bridges[0].guest, world.pid()
        guest.ask(discover(), is_offer)
        world.servers.ensure_server(make_segment(peer="10.0.0.8"))
        found = resolve(guest, "n2.demo.internal")
        return found, world.faults(), world.pid() == pid

    assert in_world(work, make_segment()) == ("10.0.0.8", (), True)
