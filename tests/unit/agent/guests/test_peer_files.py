"""Tests of a guest's peer files, which list the guests of the guest's network (hosts, known_hosts, host files)."""

import re

import pytest
from support.hosts.seed_documents import PUBLIC_KEY, seeded_guest, seeded_segment

from virtcloud.agent.guests.peer_files import full_name, hash_peer_files, render_peer_files

DNS_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]+")


def test_own_guests_have_plain_names_and_others_full_names() -> None:
    guest = seeded_guest()
    lines = render_peer_files(seeded_segment(guest), guest)["hosts"].splitlines()
    assert lines[:2] == ["# Written by virtcloud: the guests of this network.", "127.0.0.1 localhost"]
    assert lines[-3:] == [
        "10.0.0.1 n1.demo.internal n1",
        "fd00::1 n1.demo.internal n1",
        "10.0.0.9 n1.4711.pbs.internal",
    ]


def test_a_member_cluster_has_its_own_guests_under_plain_names() -> None:
    guest = seeded_guest(cluster="c2")
    hosts = render_peer_files(seeded_segment(guest), guest)["hosts"]
    assert "10.0.0.9 n1.4711.pbs.internal n1\n10.0.0.1 n1.demo.internal\n" in hosts


def test_known_hosts_have_the_host_key_of_each_name() -> None:
    guest = seeded_guest()
    assert render_peer_files(seeded_segment(guest), guest)["known_hosts"].splitlines() == [
        f"n1.demo.internal,n1,10.0.0.1,fd00::1 {PUBLIC_KEY}",
        f"n1.4711.pbs.internal,10.0.0.9 {PUBLIC_KEY}",
    ]


def test_a_host_file_has_the_slots_of_own_guests() -> None:
    guest = seeded_guest()
    files = render_peer_files(seeded_segment(guest), guest)
    assert (files["hostfile"], files["network-hostfile"]) == ("n1 slots=2\n", "n1 slots=2\nn1.4711.pbs.internal\n")


@pytest.mark.parametrize(
    "key", ["demo", "1.pbs.example.org", "a_b", "a..b", "-a", "a.", "x" * 275, "a." * 136 + "a", "0__"]
)
def test_every_full_name_is_legal_in_dns(key: str) -> None:
    for name in ("n1", "n-", "n" * 32):
        assert DNS_NAME.fullmatch(full_name(name, key))


def test_no_two_keys_share_a_domain() -> None:
    replaced = full_name("n1", "a_b").removesuffix(".internal").removeprefix("n1.")
    keys = ("a_b", "a-b", "a.b", "a__b", replaced)
    assert len({full_name("n1", key) for key in keys}) == len(keys)


def test_no_member_can_hide_a_name_of_the_internet() -> None:
    """Without the domain ``internal``, the guest ``www`` of the cluster ``example.org`` would be www.example.org."""
    assert full_name("www", "example.org") == "www.example.org.internal"


def test_the_digest_changes_when_a_peer_joins() -> None:
    guest = seeded_guest()
    segment = seeded_segment(guest)
    fewer = segment.model_copy(update={"peers": segment.peers[:1]})
    digests = {hash_peer_files(render_peer_files(one, guest)) for one in (segment, fewer, segment)}
    assert len(digests) == 2
