import time
from typing import Literal

import pytest
from support.hosts.guest_attacks import OTHER4, OTHER6, OWN4, OWN6
from support.kernel.guest_filter_wire import (
    ADDRESS_ATTACKS,
    ATTACKS,
    BROADCAST,
    DROPPED_BY_BRIDGES,
    GUEST_MAC,
    GUEST_PORT,
    MULTICAST,
    ORDINARY_FRAMES,
    OTHER_PORT,
    PORT,
    SERVICE_ATTACKS,
    SWITCH_ATTACKS,
    TEST_FRAME,
    connected,
    find_passing,
    set_filters,
)
from support.kernel.network_namespaces import Run

from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filter_rules import BROADCASTS_PER_S, GUEST, MULTICASTS_PER_S, RULES
from virtcloud.agent.network.guest_filters import GuestPort, render_table
from virtcloud.agent.network.nftables import NftablesFilters, _run

ADDRESSED_PORT = GuestPort(PORT, GUEST_MAC, (f"{OWN4}/24", f"{OWN6}/64"))
OPEN_PORT = GuestPort(PORT, None)
TAGS, LLC, TYPES, GROUP, CISCO = "8021q", "< 0x0600", "0x88cc", "01:80:c2", "01:00:0c"
DHCP, ROUTERS, FRAGMENTS, OPTIONS = "ether type ip drop", "ether type ip6 drop", "133-137", "frag nexthdr {"
FILTERS = {
    "a foreign source address": ("!= @guests drop",),
    "an 802.1Q tag": (TAGS,),
    "an 802.1ad tag": (TAGS,),
    "TCP in an 802.1Q tag": (TAGS,),
    "TCP in an 802.1ad tag": (TAGS,),
    "UDP in an 802.1Q tag": (TAGS,),
    "TCP over IPv6 in an 802.1Q tag": (TAGS,),
    "UDP over IPv6 in an 802.1Q tag": (TAGS,),
    "TCP behind a priority tag": (TAGS,),
    "TCP in two tags": (TAGS,),
    "two tags": (TAGS,),
    "an old double tag": (TAGS,),
    "a spanning tree BPDU": (LLC, GROUP),
    "a rapid spanning tree BPDU": (LLC, GROUP),
    "LLC to one switch": (LLC,),
    "a BPDU of Cisco's PVST": (LLC, CISCO),
    "CDP": (LLC, CISCO),
    "VTP": (LLC, CISCO),
    "DTP": (LLC, CISCO),
    "an Ethernet II frame to Cisco's group": (CISCO,),
    "LLDP": (TYPES, GROUP),
    "LLDP to one switch": (TYPES,),
    "LACP": (TYPES, GROUP),
    "LACP to one switch": (TYPES,),
    "EAPOL": (TYPES, GROUP),
    "EAPOL to one switch": (TYPES,),
    "a pause frame": (TYPES, GROUP),
    "a pause frame to one switch": (TYPES,),
    "GVRP": (LLC, GROUP),
    "GARP to the bridges' group": (GROUP,),
    "MVRP": (TYPES, GROUP),
    "MVRP to one switch": (TYPES,),
    "an offer of a DHCP server": (DHCP,),
    "an offer to one guest": (DHCP,),
    "an offer from another port": (DHCP,),
    "an answer to a DHCP relay": (DHCP,),
    "the first fragment of an offer": (DHCP,),
    "an offer with another IP version": (DHCP,),
    "an advertisement of a DHCPv6 server": (ROUTERS,),
    "a DHCPv6 advertisement from another port": (ROUTERS,),
    "a DHCPv6 advertisement to one guest": (ROUTERS,),
    "a DHCPv6 advertisement to one guest from another port": (ROUTERS,),
    "an answer to a DHCPv6 relay": (ROUTERS,),
    "a router advertisement": (ROUTERS,),
    "a router advertisement to one guest": (ROUTERS,),
    "a redirect": (ROUTERS,),
    "an advertisement behind options": (ROUTERS,),
    "an advertisement behind many options": (ROUTERS,),
    "the first fragment of an advertisement": (ROUTERS, FRAGMENTS),
    "an advertisement in a whole fragment": (ROUTERS, FRAGMENTS),
    "a fragment with options and without their end": (OPTIONS,),
    "a fragment with options, and with TCP in the padding": (OPTIONS,),
    "a fragment with options, and with UDP in the padding": (OPTIONS,),
    "a later fragment in a first fragment": (OPTIONS,),
    "a neighbour advertisement in a fragment": (FRAGMENTS,),
    "an advertisement with another IP version": (ROUTERS,),
    **dict.fromkeys(ADDRESS_ATTACKS, ("{ ip, arp, ip6 } drop",)),
    "a neighbour advertisement for another guest": ("icmpv6 type 136",),
    "an advertisement from outside": ("icmpv6 type 136", "{ ip, arp, ip6 } drop"),
}
"""The filters against each attack: texts that occur in the rules which drop the attack's frames."""


@pytest.fixture(scope="module")
def passes(in_namespace: Run) -> dict[str, list[bool]]:
    """Return, for each attack, whether its frame passes in each of three cases.

    The cases: without filters, with all filters, and with all filters except those against this attack.
    """

    def work() -> dict[str, list[bool]]:
        with connected() as wire:
            passes = {attack: [wire.passes(frame)] for attack, frame in {**ATTACKS, **ADDRESS_ATTACKS}.items()}
            for port, attacks in ((GUEST_PORT, ATTACKS), (ADDRESSED_PORT, ADDRESS_ATTACKS)):
                set_filters(port=port)
                for attack, frame in attacks.items():
                    passes[attack].append(wire.passes(frame))
                for attack, frame in sorted(attacks.items(), key=lambda item: FILTERS[item[0]]):
                    set_filters(*FILTERS[attack], port=port)
                    passes[attack].append(wire.passes(frame))
            return passes

    return in_namespace(work)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_guest_cannot_send(passes: dict[str, list[bool]], attack: str) -> None:
    """Without the filters against this attack, the frame passes, unless the bridge drops it."""
    forwarded = attack not in DROPPED_BY_BRIDGES
    assert passes[attack] == [forwarded, False, forwarded]


@pytest.mark.parametrize("attack", ADDRESS_ATTACKS)
def test_a_guest_with_checked_addresses_cannot_send(passes: dict[str, list[bool]], attack: str) -> None:
    assert passes[attack] == [True, False, True]


@pytest.fixture(scope="module")
def passing(in_namespace: Run) -> dict[GuestPort, list[str]]:
    ports = [
        GUEST_PORT,
        ADDRESSED_PORT,
        OPEN_PORT,
        GUEST_PORT._replace(serves=("dhcp",)),
        GUEST_PORT._replace(serves=("ra",)),
    ]

    def work() -> dict[GuestPort, list[str]]:
        found = {}
        with connected() as wire:
            for port in ports:
                set_filters(port=port)
                found[port] = find_passing(wire, {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES})
        return found

    return in_namespace(work)


def test_a_guest_may_send_ordinary_frames(passing: dict[GuestPort, list[str]]) -> None:
    """``GUEST_PORT`` does not limit the guest's IP addresses, so the guest may use all IP addresses."""
    assert passing[GUEST_PORT] == [*ADDRESS_ATTACKS, *ORDINARY_FRAMES]


def test_a_guest_with_checked_addresses_may_use_them(passing: dict[GuestPort, list[str]]) -> None:
    assert passing[ADDRESSED_PORT] == [*ORDINARY_FRAMES]


def test_a_guest_cannot_use_the_addresses_of_other_filtered_guests(in_namespace: Run) -> None:
    """The table lists the other addresses too, for the port of a guest that may use them."""
    other = GuestPort(OTHER_PORT, "02:00:00:00:00:02", (f"{OTHER4}/24", f"{OTHER6}/64"))
    unchecked = GuestPort(names.guest_port_name("b", "g1", 100), "02:00:00:00:00:03")

    def work() -> object:
        with connected() as wire:
            _run(render_table([ADDRESSED_PORT, other, unchecked]))
            return find_passing(wire, {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES})

    assert in_namespace(work) == [*ORDINARY_FRAMES]


@pytest.mark.parametrize("name", ["vnet7", "vlan7", "vpnlink", "uplink7"])
def test_ports_of_other_programs_are_not_filtered(in_namespace: Run, name: str) -> None:
    def work() -> object:
        with connected(name) as wire:
            _run(render_table([GUEST_PORT, ADDRESSED_PORT._replace(port=OTHER_PORT)]))
            return find_passing(wire, {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES})

    everything = {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES}
    assert in_namespace(work) == [frame for frame in everything if frame not in DROPPED_BY_BRIDGES]


def test_a_guest_without_addresses_sends_no_packet_from_one(in_namespace: Run) -> None:
    def work() -> object:
        with connected() as wire:
            set_filters(port=ADDRESSED_PORT._replace(addresses=()))
            return find_passing(wire, {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES})

    from_none = ["a test frame", "a DHCP request", "an ARP probe", "duplicate address detection"]
    assert in_namespace(work) == from_none


def test_changed_filters_replace_the_former_verdicts(in_namespace: Run) -> None:
    """The port stays, and its filters change from any to checked addresses and back."""
    changes = [OPEN_PORT, GUEST_PORT, ADDRESSED_PORT, GUEST_PORT, OPEN_PORT]
    frames = ORDINARY_FRAMES["TCP"], ADDRESS_ATTACKS["TCP with another guest's address"]

    def work() -> object:
        found = []
        with connected() as wire:
            for port in changes:
                NftablesFilters().replace((port,))
                found.append([wire.passes(frame) for frame in frames])
        return found

    assert in_namespace(work) == [[True, port != ADDRESSED_PORT] for port in changes]


@pytest.mark.parametrize("port", [GUEST_PORT, ADDRESSED_PORT], ids=["default", "addressed"])
def test_common_packets_pass_without_the_rules_for_other_frames(in_namespace: Run, port: GuestPort) -> None:
    """The chain of the other rules accepts only test frames here, so earlier rules have accepted the packets."""

    def work() -> object:
        with connected() as wire:
            _run(render_table([port], {**RULES, GUEST: (f"ether type != 0x{TEST_FRAME} drop",)}))
            return find_passing(wire, ORDINARY_FRAMES)

    assert in_namespace(work) == ["a test frame", "TCP", "UDP", "TCP over IPv6", "UDP over IPv6"]


def test_open_filters_drop_frames_that_harm_other_clusters(passing: dict[GuestPort, list[str]]) -> None:
    dropped = {*SWITCH_ATTACKS} - {"a foreign source address"}
    hidden = {name for name, parts in FILTERS.items() if {FRAGMENTS, OPTIONS} & {*parts}} | {
        "an offer with another IP version",
        "an advertisement with another IP version",
    }
    assert {*ATTACKS, *ADDRESS_ATTACKS, *ORDINARY_FRAMES} - {*passing[OPEN_PORT]} == dropped | hidden


@pytest.mark.parametrize(
    ("service", "answers"),
    [
        (
            "dhcp",
            [
                "an offer of a DHCP server",
                "an offer to one guest",
                "an offer from another port",
                "an answer to a DHCP relay",
                "the first fragment of an offer",
                "an advertisement of a DHCPv6 server",
                "a DHCPv6 advertisement from another port",
                "a DHCPv6 advertisement to one guest",
                "a DHCPv6 advertisement to one guest from another port",
                "an answer to a DHCPv6 relay",
            ],
        ),
        (
            "ra",
            [
                "a router advertisement",
                "a router advertisement to one guest",
                "a redirect",
                "an advertisement behind options",
                "an advertisement behind many options",
            ],
        ),
    ],
)
def test_a_guest_may_offer_the_services_that_its_spec_permits(
    passing: dict[GuestPort, list[str]], service: Literal["dhcp", "ra"], answers: list[str]
) -> None:
    assert [name for name in SERVICE_ATTACKS if name in passing[GUEST_PORT._replace(serves=(service,))]] == answers


@pytest.mark.parametrize(("group", "per_s"), [(BROADCAST, BROADCASTS_PER_S), (MULTICAST, MULTICASTS_PER_S)])
@pytest.mark.parametrize("port", [GUEST_PORT, OPEN_PORT], ids=["default", "open"])
def test_a_broadcast_storm_is_limited(in_namespace: Run, group: str, per_s: int, port: GuestPort) -> None:
    number = 2 * per_s

    def work() -> tuple[int, int, float]:
        with connected() as wire:
            before = wire.count_arrivals(number, group)
            set_filters(port=port)
            start = time.monotonic()
            return before, wire.count_arrivals(number, group), time.monotonic() - start

    before, after, seconds = in_namespace(work)
    assert before == number
    assert per_s <= after <= per_s * (1 + seconds)


@pytest.mark.parametrize("packet", ["TCP", "UDP", "TCP over IPv6", "UDP over IPv6"])
@pytest.mark.parametrize("port", [GUEST_PORT, ADDRESSED_PORT], ids=["default", "addressed"])
def test_a_storm_of_common_packets_is_limited(in_namespace: Run, port: GuestPort, packet: str) -> None:
    number, content = 2 * BROADCASTS_PER_S, ORDINARY_FRAMES[packet][len(BROADCAST + GUEST_MAC.replace(":", "")) :]

    def work() -> tuple[int, float]:
        with connected() as wire:
            set_filters(port=port)
            start = time.monotonic()
            return wire.count_arrivals(number, BROADCAST, content), time.monotonic() - start

    arrived, seconds = in_namespace(work)
    assert BROADCASTS_PER_S <= arrived <= BROADCASTS_PER_S * (1 + seconds)
