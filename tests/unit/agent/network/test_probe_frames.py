"""Tests of the frames that probe an IP address, and of the frames that answer a probe.

A program other than virtcloud computed the expected checksums.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from virtcloud.agent.network.address_probe import AddressAnswer, build_probe, parse_frame

BRIDGE = bytes.fromhex("02a1b2c3d4e5")
ARP_PROBE = """
    ffffffffffff 02a1b2c3d4e5 0806
    0001 0800 06 04 0001
    02a1b2c3d4e5 00000000
    000000000000 0a000002
"""
ARP_REPLY = """
    02a1b2c3d4e5 020000000002 0806
    0001 0800 06 04 0002
    020000000002 0a000002
    02a1b2c3d4e5 00000000
    000000000000000000000000000000000000
"""
ANNOUNCEMENT = """
    ffffffffffff 020000000002 0806
    0001 0800 06 04 0001
    020000000002 0a000002
    000000000000 0a000002
"""
SOLICITATION = """
    3333ffab0002 02a1b2c3d4e5 86dd
    60000000 0020 3a ff
    fe8000000000000000a1b2fffec3d4e5
    ff0200000000000000000001ffab0002
    87 00 6b2e 00000000
    fd000000000000000000000000ab0002
    01 01 02a1b2c3d4e5
"""
ADVERTISEMENT = """
    02a1b2c3d4e5 020000000002 86dd
    60000000 0020 3a ff
    fd000000000000000000000000ab0002
    fe8000000000000000a1b2fffec3d4e5
    88 00 927a 60000000
    fd000000000000000000000000ab0002
    02 01 020000000002
"""


def frame(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


def changed(text: str, old: str, new: str) -> bytes:
    assert old in text
    return frame(text.replace(old, new, 1))


def test_an_arp_probe_has_no_sender_address() -> None:
    assert build_probe(BRIDGE, IPv4Address("10.0.0.2")) == frame(ARP_PROBE)


def test_a_solicitation_comes_from_the_link_local_address() -> None:
    assert build_probe(BRIDGE, IPv6Address("fd00::ab:2")) == frame(SOLICITATION)


@pytest.mark.parametrize(
    ("received", "address"),
    [(ARP_REPLY, "10.0.0.2"), (ANNOUNCEMENT, "10.0.0.2"), (ADVERTISEMENT, "fd00::ab:2")],
    ids=["reply", "announcement", "advertisement"],
)
def test_replies_and_announcements_are_answers(received: str, address: str) -> None:
    assert parse_frame(frame(received)) == AddressAnswer(ip_address(address))


def test_another_hosts_probe_is_a_claim() -> None:
    assert parse_frame(frame(ARP_PROBE)) == AddressAnswer(IPv4Address("10.0.0.2"), claimed=True)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (ARP_REPLY, "0806", "0800"),
        (ARP_REPLY, "0001 0800", "0006 0800"),
        (ARP_REPLY, "06 04 0002", "06 04 0003"),
        (ADVERTISEMENT, "88 00 927a", "88 00 927b"),
        (ADVERTISEMENT, "88 00 927a", "86 00 947a"),
        (ADVERTISEMENT, "3a ff", "3a fe"),
        (ADVERTISEMENT, "3a ff", "11 ff"),
        (ADVERTISEMENT, "0020 3a", "0060 3a"),
        (ADVERTISEMENT, "0020 3a", "0008 3a"),
        (SOLICITATION, "ff0200", "ff0200"),
    ],
    ids=[
        "not ARP",
        "not Ethernet",
        "not an answer",
        "damaged",
        "a router advertisement",
        "hop limit below 255",
        "UDP",
        "truncated",
        "too short",
        "a solicitation",
    ],
)
def test_other_frames_are_ignored(text: str, old: str, new: str) -> None:
    assert parse_frame(changed(text, old, new)) is None


@pytest.mark.parametrize("text", [ARP_REPLY, ADVERTISEMENT])
def test_truncated_frames_are_ignored(text: str) -> None:
    complete = frame(text)
    shortest = 42 if text == ARP_REPLY else len(complete)
    assert {parse_frame(complete[:length]) for length in range(shortest)} == {None}
