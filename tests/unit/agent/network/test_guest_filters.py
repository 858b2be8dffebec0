"""Tests of guests' filters on the real kernel: attacks of a guest on its network, and faults of the nftables table."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Literal

import kernel_links
import pytest
from guest_attacks import (
    OWN4,
    OWN6,
    build_address_attacks,
    build_ordinary_frames,
    build_routed_frames,
    build_service_attacks,
    build_switch_attacks,
)

from virtcloud.agent.host_bootstrap import _open_filters
from virtcloud.agent.network import names, nftables
from virtcloud.agent.network.guest_filters import (
    BROADCASTS_PER_S,
    MULTICASTS_PER_S,
    RULES,
    DevicePort,
    FilteredPort,
    GuestPort,
    list_elements,
    render_table,
)
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters, _run
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused, Unsafe

Run = Callable[[Callable[[], object]], object]

GUEST, SWITCH = "020000000001", "020000000009"
PORT, OTHER_PORT = names.guest_port_name("a", "g1", 100), names.guest_port_name("a", "g2", 100)
GUEST_MAC = "02:00:00:00:00:01"
GUEST_PORT = GuestPort(PORT, GUEST_MAC)
ADDRESSED_PORT = GuestPort(PORT, GUEST_MAC, (f"{OWN4}/24", f"{OWN6}/64"))
OPEN_PORT = GuestPort(PORT, None)
VPN_PORT = "vpn-udp.100"
DEVICE_PORT = DevicePort(VPN_PORT, guest_macs=("02:00:00:00:00:0a",))
ADDRESSED_DEVICES = DEVICE_PORT._replace(addresses=(f"{OWN4}/24", f"{OWN6}/64"))
SUBNETS = ("10.0.0.0/24", "fd00::/64")
DROPPED_BY_BRIDGES = {"LLDP", "LACP", "EAPOL", "a pause frame"}
"""Frames to addresses that the kernel's bridge never forwards (IEEE 802.1Q-2018, table 8-1)."""
BROADCAST, MULTICAST = "ffffffffffff", "333300000001"
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RECEIVE_BUFFER = 64 << 20  # bytes; a frame takes about 800 bytes in the kernel
TEST_FRAME = "88b5"
SWITCH_ATTACKS, SERVICE_ATTACKS, ADDRESS_ATTACKS, ORDINARY_FRAMES = (
    {name: bytes(frame).hex() for name, frame in build(GUEST_MAC).items()}
    for build in (build_switch_attacks, build_service_attacks, build_address_attacks, build_ordinary_frames)
)
TAGS, LLC, TYPES, GROUP, CISCO = "8021q", "< 0x0600", "0x88cc", "01:80:c2", "01:00:0c"
DHCP, ROUTERS, FRAGMENTS, OPTIONS = "ether type ip drop", "ether type ip6 drop", "133-137", "frag nexthdr {"
FILTERS = {
    "a foreign source address": ("!= @guests drop",),
    "an 802.1Q tag": (TAGS,),
    "an 802.1ad tag": (TAGS,),
    "TCP in an 802.1Q tag": (TAGS,),
    "TCP in an 802.1ad tag": (TAGS,),
    "UDP in an 802.1Q tag": (TAGS,),
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
    "a router advertisement": (ROUTERS,),
    "a router advertisement to one guest": (ROUTERS,),
    "a redirect": (ROUTERS,),
    "an advertisement behind options": (ROUTERS,),
    "an advertisement behind many options": (ROUTERS,),
    "the first fragment of an advertisement": (ROUTERS, FRAGMENTS),
    "an advertisement in a whole fragment": (ROUTERS, FRAGMENTS),
    "a fragment with options and without their end": (OPTIONS,),
    "a neighbour advertisement in a fragment": (FRAGMENTS,),
    "an advertisement with another IP version": (ROUTERS,),
    **dict.fromkeys(ADDRESS_ATTACKS, ("{ ip, arp, ip6 } drop",)),
    "a neighbour advertisement for another guest": ("icmpv6 type 136",),
    "an advertisement from outside": ("icmpv6 type 136", "{ ip, arp, ip6 } drop"),
}
"""By attack, texts that occur in the rules which drop the attack's frames."""
ATTACKS = {**SWITCH_ATTACKS, **SERVICE_ATTACKS}


class Wire:
    """A guest and a switch on a bridge. A guest's frame reaches the switch unless the bridge or a filter drops it."""

    def __init__(self, guest: socket.socket, switch: socket.socket) -> None:
        self._guest, self._switch = guest, switch

    def passes(self, frame: str) -> bool:
        """Send a frame as the guest, then a harmless frame. Return whether the first frame arrives as well."""
        serial = os.urandom(8)
        self._guest.send((bytes.fromhex(frame) + serial).ljust(60, b"\0"))
        return serial in self._frames_until(BROADCAST + GUEST + TEST_FRAME)

    def count_arrivals(self, number: int, group: str) -> int:
        """Send ``number`` frames to the MAC address ``group``. Return the number of frames that arrive."""
        serial = os.urandom(8)
        for _ in range(number):
            self._guest.send((bytes.fromhex(group + GUEST + TEST_FRAME) + serial).ljust(60, b"\0"))
        return self._frames_until(SWITCH + GUEST + TEST_FRAME).count(serial)

    def _frames_until(self, last: str) -> bytes:
        mark, received = os.urandom(8), [b""]
        self._guest.send((bytes.fromhex(last) + mark).ljust(60, b"\0"))
        with suppress(TimeoutError):
            while mark not in received[-1]:
                received.append(self._switch.recv(2048))
        return b"".join(received)


def nft(*arguments: str) -> str:
    """Return the output of the program ``nft``."""
    return subprocess.run(["nft", *arguments], text=True, capture_output=True, check=True).stdout  # noqa: S603, S607 - Debian's nft


@contextmanager
def connected(port: str = PORT) -> Iterator[Wire]:
    """Connect a guest and a switch by a bridge. The guest's port has the name ``port``."""
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        for name, peer in (("guest", port), ("switch", "uplink")):
            kernel_links.link("add", ifname=name, kind="veth", peer=peer)
            kernel.disable_host_ip(kernel_links.find_index(name), name)
            kernel.change(kernel_links.find_index(name), up=True)
            kernel.change(kernel_links.find_index(peer), master=bridge, up=True)
        kernel.change(bridge, up=True)
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as switch,
        ):
            switch.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            guest.bind(("guest", 0))
            switch.bind(("switch", 0))
            switch.settimeout(0.2)
            wire = Wire(guest, switch)
            deadline = time.monotonic() + 10
            while not wire.passes(BROADCAST + GUEST + TEST_FRAME):  # a new port does not forward frames immediately
                assert time.monotonic() < deadline
            switch.settimeout(10)
            yield wire


def set_filters(*removed: str, port: FilteredPort = GUEST_PORT) -> None:
    """Replace the nftables table by a table for one port, without the rules that contain a text of ``removed``."""
    rules = {
        chain: tuple(rule for rule in of_chain if not any(part in rule for part in removed))
        for chain, of_chain in RULES.items()
    }
    _run(render_table([port], rules))


def find_passing(wire: Wire, frames: dict[str, str]) -> list[str]:
    """Return the names of the frames that arrive."""
    return [name for name, frame in frames.items() if wire.passes(frame)]


@pytest.fixture(scope="module")
def passes(in_namespace: Run) -> dict[str, list[bool]]:
    """Return by attack whether its frame passes without filters, with all filters, and without the attack's filter."""

    def work() -> object:
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

    return in_namespace(work)  # type: ignore[return-value]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_guest_cannot_send(passes: dict[str, list[bool]], attack: str) -> None:
    """Without the attack's own filter, the frame passes, unless the bridge drops it. So each filter is necessary."""
    forwarded = attack not in DROPPED_BY_BRIDGES
    assert passes[attack] == [forwarded, False, forwarded]


@pytest.mark.parametrize("attack", ADDRESS_ATTACKS)
def test_a_guest_with_checked_addresses_cannot_send(passes: dict[str, list[bool]], attack: str) -> None:
    assert passes[attack] == [True, False, True]


@pytest.fixture(scope="module")
def passing(in_namespace: Run) -> dict[GuestPort, list[str]]:
    """Return the names of the frames that pass, by the settings of the guest's port."""
    ports = [
        GUEST_PORT,
        ADDRESSED_PORT,
        OPEN_PORT,
        GUEST_PORT._replace(serves=("dhcp",)),
        GUEST_PORT._replace(serves=("ra",)),
    ]

    def work() -> object:
        found = {}
        with connected() as wire:
            for port in ports:
                set_filters(port=port)
                found[port] = find_passing(wire, {**ATTACKS, **ADDRESS_ATTACKS, **ORDINARY_FRAMES})
        return found

    return in_namespace(work)  # type: ignore[return-value]


def test_a_guest_may_send_ordinary_frames(passing: dict[GuestPort, list[str]]) -> None:
    """Without further options, the guest may use all IP addresses."""
    assert passing[GUEST_PORT] == [*ADDRESS_ATTACKS, *ORDINARY_FRAMES]


def test_a_guest_with_checked_addresses_may_use_them(passing: dict[GuestPort, list[str]]) -> None:
    assert passing[ADDRESSED_PORT] == [*ORDINARY_FRAMES]


def test_open_filters_drop_what_harms_other_clusters(passing: dict[GuestPort, list[str]]) -> None:
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
def test_a_guest_may_offer_services_of_the_spec(
    passing: dict[GuestPort, list[str]], service: Literal["dhcp", "ra"], answers: list[str]
) -> None:
    assert [name for name in SERVICE_ATTACKS if name in passing[GUEST_PORT._replace(serves=(service,))]] == answers


@pytest.mark.parametrize(("group", "per_s"), [(BROADCAST, BROADCASTS_PER_S), (MULTICAST, MULTICASTS_PER_S)])
@pytest.mark.parametrize("port", [GUEST_PORT, OPEN_PORT], ids=["default", "open"])
def test_a_broadcast_storm_is_limited(in_namespace: Run, group: str, per_s: int, port: GuestPort) -> None:
    number = 2 * per_s

    def work() -> object:
        with connected() as wire:
            before = wire.count_arrivals(number, group)
            set_filters(port=port)
            start = time.monotonic()
            return before, wire.count_arrivals(number, group), time.monotonic() - start

    before, after, seconds = in_namespace(work)  # type: ignore[misc]
    assert before == number
    assert per_s <= after <= per_s * (1 + seconds)


DEVICE_ATTACKS = {
    **{attack: frame for attack, frame in ATTACKS.items() if attack != "a foreign source address"},
    "the MAC address of a guest": SWITCH + "02000000000a" + TEST_FRAME,
    "a tag behind a priority tag": SWITCH + GUEST + "81006000" + "81000065" + TEST_FRAME,
    "duplicate address detection": ORDINARY_FRAMES["duplicate address detection"],
}


def test_a_device_cannot_send(in_namespace: Run) -> None:
    """Each frame passes without filters, unless the bridge itself drops the frame."""

    def work() -> object:
        with connected(VPN_PORT) as wire:
            before = find_passing(wire, DEVICE_ATTACKS)
            set_filters(port=DEVICE_PORT)
            return before, find_passing(wire, DEVICE_ATTACKS)

    before, after = in_namespace(work)  # type: ignore[misc]
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
    """Link-local addresses are not checked, because they depend on MAC addresses that the agent does not know."""

    def work() -> object:
        with connected(VPN_PORT) as wire:
            set_filters(port=ADDRESSED_DEVICES)
            return find_passing(wire, ADDRESS_ATTACKS), find_passing(wire, ORDINARY_FRAMES)

    attacks, ordinary = in_namespace(work)  # type: ignore[misc]
    assert attacks == ["an ARP reply with a foreign MAC address", "IPv6 with another link-local address"]
    assert ordinary == [name for name in ORDINARY_FRAMES if name != "duplicate address detection"]


def test_a_router_may_use_addresses_outside_of_the_networks_subnets(in_namespace: Run) -> None:
    """The router cannot use foreign addresses in these subnets, or announce them by ARP or neighbour discovery."""
    foreign = {name: bytes(frame).hex() for name, frame in build_routed_frames(GUEST_MAC).items()}

    def work() -> object:
        with connected(VPN_PORT) as wire:
            set_filters(port=ADDRESSED_DEVICES)
            before = find_passing(wire, foreign)
            set_filters(port=ADDRESSED_DEVICES._replace(routed=SUBNETS))
            return before, find_passing(wire, foreign), find_passing(wire, ADDRESS_ATTACKS)

    before, after, attacks = in_namespace(work)  # type: ignore[misc]
    assert (before, after) == ([], list(foreign))
    assert attacks == ["an ARP reply with a foreign MAC address", "IPv6 with another link-local address"]


def test_a_storm_of_a_device_is_limited(in_namespace: Run) -> None:
    number = 2 * BROADCASTS_PER_S

    def work() -> object:
        with connected(VPN_PORT) as wire:
            set_filters(port=DEVICE_PORT)
            start = time.monotonic()
            return wire.count_arrivals(number, BROADCAST), time.monotonic() - start

    arrived, seconds = in_namespace(work)  # type: ignore[misc]
    assert BROADCASTS_PER_S <= arrived <= BROADCASTS_PER_S * (1 + seconds)


def test_replacing_the_filters_is_read_back(in_namespace: Run) -> None:
    addresses = ("10.0.0.1/24", "fd00::1/64", "::5/64")
    first, second = (
        (GUEST_PORT,),
        (
            GUEST_PORT._replace(serves=("dhcp", "ra")),
            GuestPort(OTHER_PORT, "02:00:00:00:00:02", addresses),
            ADDRESSED_DEVICES._replace(routed=(*SUBNETS, "10.9.9.9/32")),
        ),
    )

    def work() -> object:
        filters = NftablesFilters()
        observed = [filters.read()]
        for ports in (first, second, second, (), ()):
            filters.replace(ports)
            observed.append(filters.read())
        return observed

    expected = [(), first, second, second, (), ()]
    assert in_namespace(work) == [ObservedFilters(list_elements(ports)) for ports in expected]


@pytest.mark.parametrize(
    "command",
    [
        "flush chain bridge virtcloud guest",
        "delete rule bridge virtcloud ingress handle HANDLE",
        "insert rule bridge virtcloud guest accept",
        "flush set bridge virtcloud ports",
        "flush set bridge virtcloud guests",
        "flush set bridge virtcloud free",
        f'add element bridge virtcloud routers {{ "{PORT}" }}',
        "delete table bridge virtcloud",
        "add table bridge virtcloud { flags dormant; }",
        "flush ruleset",
        "add chain bridge virtcloud ingress { policy drop; }",
    ],
)
def test_a_change_by_somebody_else_is_found(in_namespace: Run, command: str) -> None:
    ports = (GUEST_PORT,)

    def work() -> object:
        filters = NftablesFilters()
        filters.replace(ports)
        listing = nft("-a", "list chain bridge virtcloud ingress")
        handle = next(line.rpartition(" ")[2] for line in listing.splitlines() if "goto" in line)
        nft(command.replace("HANDLE", handle))
        return filters.read() == ObservedFilters(list_elements(ports))

    assert in_namespace(work) is False


def test_without_nf_tables_the_filters_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_commands: str) -> object:
        raise Refused("the kernel refused the filters of guests")

    monkeypatch.setattr(nftables, "_run", refuse)
    settings = AgentSettings.model_validate({"element": "h1", "sbf": "http://sbf", "guests": {"filters": "off"}})
    assert _open_filters(settings) is None


FIREWALLD = """
table inet firewalld
delete table inet firewalld
table inet firewalld { chain filter_INPUT { type filter hook input priority 10; policy accept; }; }
"""
"""The commands by which firewalld replaces its own table when its settings are reloaded."""
DOCKER = """
table ip nat { chain DOCKER { }; chain PREROUTING { type nat hook prerouting priority -100; jump DOCKER; }; }
table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }
table bridge filter { chain FORWARD { type filter hook prerouting priority -300; policy accept; accept; }; }
"""
"""Tables like those of Docker and ebtables. The last table accepts all frames before the filters of guests."""


@pytest.mark.parametrize(
    ("commands", "tables"),
    [
        ("flush ruleset", []),
        (f"flush ruleset; {FIREWALLD}", ["inet firewalld"]),
        (FIREWALLD, ["inet firewalld"]),
        (DOCKER, ["bridge filter", "ip filter", "ip nat"]),
        ("delete table bridge virtcloud", []),
        ("flush table bridge virtcloud", []),
        ("add table bridge virtcloud { flags dormant; }", []),
    ],
)
def test_filters_survive_other_programs(in_namespace: Run, commands: str, tables: list[str]) -> None:
    """After the next reading, the filters work, and the tables of other programs still exist."""

    def work() -> object:
        with connected() as wire:
            filters = NftablesFilters()
            filters.replace((GUEST_PORT,))
            _run(commands)
            if filters.read() != ObservedFilters(list_elements([GUEST_PORT])):
                filters.replace((GUEST_PORT,))
            found = {line.removeprefix("table ") for line in nft("list tables").splitlines()}
            return find_passing(wire, ATTACKS), sorted(found - {"bridge virtcloud"})

    assert in_namespace(work) == ([], tables)


def test_a_foreign_table_of_the_same_name_is_not_replaced(in_namespace: Run) -> None:
    foreign = "table bridge virtcloud {\n\tchain mine {\n\t\tcounter packets 0 bytes 0\n\t}\n}\n"

    def work() -> object:
        _run(foreign)
        filters = NftablesFilters()
        with pytest.raises(Unsafe, match="virtcloud did not create; left unchanged"):
            filters.replace((GUEST_PORT,))
        filters.remove()
        return filters.read().faults, nft("list ruleset")

    assert in_namespace(work) == (("virtcloud did not create the table bridge virtcloud",), foreign)


def test_tables_of_others_are_left_alone(in_namespace: Run) -> None:
    def work() -> object:
        nft("add table bridge filter; add table inet virtcloud")
        filters = NftablesFilters()
        filters.replace((GUEST_PORT,))
        filters.replace(())
        return nft("list tables")

    assert in_namespace(work) == "table bridge filter\ntable inet virtcloud\n"
