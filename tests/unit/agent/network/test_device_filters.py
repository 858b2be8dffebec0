"""Tests of the filters for VPN devices and for routers. The filters run in the real kernel."""

import time

from support.hosts.guest_attacks import build_routed_frames
from support.kernel.guest_filter_wire import (
    ADDRESS_ATTACKS,
    ADDRESSED_DEVICES,
    ATTACKS,
    BROADCAST,
    DEVICE_PORT,
    DROPPED_BY_BRIDGES,
    GUEST,
    GUEST_MAC,
    ORDINARY_FRAMES,
    SUBNETS,
    SWITCH,
    TEST_FRAME,
    VPN_PORT,
    connected,
    find_passing,
    set_filters,
)
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.guest_filter_rules import BROADCASTS_PER_S

DEVICE_ATTACKS = {
    **{attack: frame for attack, frame in ATTACKS.items() if attack != "a foreign source address"},
    "the MAC address of a guest": SWITCH + "02000000000a" + TEST_FRAME,
    "a tag behind a priority tag": SWITCH + GUEST + "81006000" + "81000065" + TEST_FRAME,
    "duplicate address detection": ORDINARY_FRAMES["duplicate address detection"],
}


def test_a_device_cannot_send_forbidden_frames(in_namespace: Run) -> None:
    """Without the filters, each of these frames passes, except the frames that the bridge itself drops."""

    def work() -> tuple[list[str], list[str]]:
        with connected(VPN_PORT) as wire:
            before = find_passing(wire, DEVICE_ATTACKS)
            set_filters(port=DEVICE_PORT)
            return before, find_passing(wire, DEVICE_ATTACKS)

    before, after = in_namespace(work)
    assert {*DEVICE_ATTACKS} - {*before} == DROPPED_BY_BRIDGES
    assert after == []


def test_a_device_may_use_other_mac_and_ip_addresses(in_namespace: Run) -> None:
    frames = {**ADDRESS_ATTACKS, **ORDINARY_FRAMES, "another MAC address": SWITCH + "02000000000b" + TEST_FRAME}

    def work() -> object:
        with connected(VPN_PORT) as wire:
            set_filters(port=DEVICE_PORT)
            return find_passing(wire, frames)

    assert in_namespace(work) == [name for name in frames if name != "duplicate address detection"]


def test_devices_with_checked_addresses_use_only_these(in_namespace: Run) -> None:
    """Link-local addresses are not checked: they depend on MAC addresses that the agent does not know."""

    def work() -> tuple[list[str], list[str]]:
        with connected(VPN_PORT) as wire:
            set_filters(port=ADDRESSED_DEVICES)
            return find_passing(wire, ADDRESS_ATTACKS), find_passing(wire, ORDINARY_FRAMES)

    attacks, ordinary = in_namespace(work)
    assert attacks == ["an ARP reply with a foreign MAC address", "IPv6 with another link-local address"]
    assert ordinary == [name for name in ORDINARY_FRAMES if name != "duplicate address detection"]


def test_a_router_may_use_addresses_outside_of_the_networks_subnets(in_namespace: Run) -> None:
    """Of the subnets' addresses, the router can use and announce (by ARP or neighbour discovery) only its own."""
    foreign = {name: bytes(frame).hex() for name, frame in build_routed_frames(GUEST_MAC).items()}

    def work() -> tuple[list[str], list[str], list[str]]:
        with connected(VPN_PORT) as wire:
            set_filters(port=ADDRESSED_DEVICES)
            before = find_passing(wire, foreign)
            set_filters(port=ADDRESSED_DEVICES._replace(routed=SUBNETS))
            return before, find_passing(wire, foreign), find_passing(wire, ADDRESS_ATTACKS)

    before, after, attacks = in_namespace(work)
    assert (before, after) == ([], list(foreign))
    assert attacks == ["an ARP reply with a foreign MAC address", "IPv6 with another link-local address"]


def test_a_storm_of_a_device_is_limited(in_namespace: Run) -> None:
    number = 2 * BROADCASTS_PER_S

    def work() -> tuple[int, float]:
        with connected(VPN_PORT) as wire:
            set_filters(port=DEVICE_PORT)
            start = time.monotonic()
            return wire.count_arrivals(number, BROADCAST), time.monotonic() - start

    arrived, seconds = in_namespace(work)
    assert BROADCASTS_PER_S <= arrived <= BROADCASTS_PER_S * (1 + seconds)
