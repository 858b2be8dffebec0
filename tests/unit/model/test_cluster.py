import time

import pytest

from virtcloud.model.cluster import (
    ENDED_STATES,
    LEAVING_STATES,
    TRANSITIONS,
    WANTED_STATES,
    ClusterSpec,
    ClusterState,
    check_transition,
)
from virtcloud.model.errors import BadDocument, IllegalTransition
from virtcloud.model.guest_spec import GuestSpread
from virtcloud.model.yaml_document import read_document


def refusal(text: str) -> str:
    with pytest.raises(BadDocument) as caught:
        read_document(text, "cluster.yaml", ClusterSpec)
    return str(caught.value)


def test_a_cluster_without_hosts_is_refused() -> None:
    assert refusal("owner: alice\n") == "cluster.yaml:1: document: expected at least one host or guest, got none"


def test_text_that_is_not_utf8_is_refused_at_its_line() -> None:
    text = b"owner: alice\nhosts: [\xe9]\n".decode(errors="surrogateescape")
    assert refusal(text) == "cluster.yaml:2: expected YAML in UTF-8, got other bytes"


@pytest.mark.parametrize(
    ("value", "kind"), [("2026-02-30", "timestamp"), ("0x_", "int"), ("!!bool maybe", "bool"), (r'"\ud800"', "str")]
)
def test_a_value_that_yaml_cannot_represent_is_refused(value: str, kind: str) -> None:
    message = f"cluster.yaml:2: not YAML: expected a valid value of type {kind}, got "
    assert refusal(f"owner: alice\nname: {value}\n").startswith(message)


@pytest.mark.parametrize("code", ["00110000", "FFFFFFFF"])
def test_an_escape_code_beyond_unicode_is_refused(code: str) -> None:
    assert refusal(f'owner: alice\nname: "\\U{code}"\n') == (
        f"cluster.yaml:2: not YAML: expected the code of a character, at most 0010FFFF, got '{code}'"
    )


def test_deeply_nested_yaml_is_refused() -> None:
    assert refusal("[" * 3000) == "cluster.yaml: expected YAML with fewer nested levels"


def test_a_key_that_occurs_twice_is_refused() -> None:
    message = "not YAML: expected each key once, got"
    assert (
        refusal("owner: alice\nhosts: [h1]\nowner: bob\n")
        == f"cluster.yaml:3: {message} 'owner' again, first in line 1"
    )
    assert refusal("owner: alice\nguests:\n- {name: a, host: h1, name: b}\n") == (
        f"cluster.yaml:3: {message} 'name' again, first in line 3"
    )


@pytest.mark.parametrize(
    ("text", "similar"),
    [
        ("guests: [{name: a, host: h1, image: busybox, memory: 4}]", "guests.0.memory: KEY (similar: memory_mb)"),
        ("spread: {count: 2, image: busybox, site: [brno]}", "spread.site: KEY (similar: sites)"),
        ("hosst: [h1]", "hosst: KEY (similar: hosts)"),
        ("colour: red", "colour: KEY"),
    ],
)
def test_an_unknown_key_is_reported_with_a_similar_key(text: str, similar: str) -> None:
    expected = f"cluster.yaml:2: {similar.replace('KEY', 'unknown key; check its spelling')}"
    assert refusal(f"owner: alice\n{text}\n") == expected


def test_a_key_may_replace_the_value_of_a_merged_mapping() -> None:
    text = (
        "owner: alice\nguests:\n- &one {name: a, host: h1, image: busybox}\n"
        "- &two {<<: *one, name: b}\n- {<<: *two, <<: *one, name: c}\n"
    )
    assert [str(guest.name) for guest in read_document(text, "cluster.yaml", ClusterSpec).guests] == ["a", "b", "c"]


def test_a_number_instead_of_a_list_is_refused() -> None:
    assert refusal("owner: alice\nhosts: 5\n") == "cluster.yaml:2: hosts: expected a list, got 5"


def test_two_guests_with_the_same_name_are_refused() -> None:
    text = "owner: alice\nguests:\n- {name: a, host: h1, image: busybox}\n- {name: a, host: h2, image: busybox}\n"
    assert refusal(text) == "cluster.yaml:1: document: expected each guest to have its own name, got name a 2 times"


def test_an_address_without_a_prefix_length_is_refused() -> None:
    text = "owner: alice\nguests:\n- {name: a, host: h1, image: busybox, addresses: [10.0.0.1]}\n"
    assert refusal(text).startswith("cluster.yaml:3: guests.0.addresses.0: expected an address with its prefix length")


def test_a_multicast_mac_is_refused() -> None:
    text = "owner: alice\nguests:\n- {name: a, host: h1, image: busybox, mac: '01:00:00:00:00:01'}\n"
    assert "expected a unicast MAC address" in refusal(text)


def test_no_guest_may_have_the_mac_address_that_hosts_use() -> None:
    text = "owner: alice\nguests:\n- {name: a, host: h1, image: x, mac: '02:76:63:00:00:fe'}\n"
    assert "expected a MAC address other than 02:76:63:00:00:fe, which hosts use" in refusal(text)


@pytest.mark.parametrize("key", ["filters: open", "serves: [dhcp]", "host_services: [dhcp]"])
def test_only_a_new_network_may_have_filters(key: str) -> None:
    expected = f"expected the key {key.partition(':')[0]} only for a new network; this cluster joins network n"
    assert expected in refusal(f"owner: alice\nhosts: [h1]\njoins: n\n{key}\n")


def test_keys_that_only_a_new_network_may_have_are_listed() -> None:
    text = "owner: alice\nhosts: [h1]\njoins: n\nvlan: 117\nfilters: open\n"
    assert "expected the keys vlan, filters only for a new network; this cluster joins network n" in refusal(text)


def test_the_error_for_a_fraction_contains_the_value_once() -> None:
    assert refusal("owner: alice\nhosts: [h1]\nvlan: 100.5\n") == (
        "cluster.yaml:3: vlan: expected a valid integer, got 100.5"
    )


def test_a_second_ipv6_address_of_the_router_is_refused() -> None:
    found = refusal(
        "owner: alice\nhosts: [h1]\nrouter: device\nrouter_addresses: [10.0.0.1/24, fd00::1/64, fd00::2/64]\n"
    )
    assert found.endswith("expected at most one IPv6 address of the router, got 2")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ("host_services: [dns]", "expected dhcp with dns, because guests learn the address of the DNS server by DHCP"),
        ("host_services: [dhcp]\nserves: [dhcp]", "expected DHCP servers on hosts or in guests (serves), got both"),
        ("host_services: [dhcp]\nsubnets: []", "expected addresses that DHCP can assign, got subnets: []"),
        (
            "host_services: [metadata]",
            "expected dhcp with metadata, because guests learn the address of the metadata server by DHCP",
        ),
        (
            "host_services: [dhcp, metadata]\nfilters: open",
            "expected no metadata with filters: open, because a guest could read another guest's seed",
        ),
        ("host_services: [ntp]", "expected 'dhcp', 'dns' or 'metadata', got 'ntp'"),
    ],
)
def test_services_of_hosts_that_cannot_work_are_refused(keys: str, reason: str) -> None:
    found = refusal(f"owner: alice\nhosts: [h1]\n{keys}\n")
    assert found.startswith("cluster.yaml:3: host_services")
    assert found.endswith(reason)


def test_repeated_services_are_compared_with_guests_once() -> None:
    guests = [{"name": f"g{number}", "host": "h1", "image": "busybox"} for number in range(200)]
    document = {"owner": "alice", "guests": guests, "services": ["nfs"] * 200_000}
    started = time.process_time()
    ClusterSpec.model_validate({**document, "subnets": ["10.0.0.0/24"]})
    assert time.process_time() - started < 1


def test_a_spec_without_services_of_hosts_suits_an_older_sbf() -> None:
    spec = read_document("owner: alice\nhosts: [h1]\n", "cluster.yaml", ClusterSpec)
    assert "host_services" not in spec.model_dump()


def test_hosts_of_guests_belong_to_the_cluster() -> None:
    text = "owner: alice\nhosts: [h3]\nguests:\n- {name: a, host: h1, image: busybox}\n"
    assert read_document(text, "cluster.yaml", ClusterSpec).all_hosts == ("h1", "h3")


@pytest.mark.parametrize("state", ClusterState)
@pytest.mark.parametrize("to", ClusterState)
def test_only_transitions_of_the_table_are_legal(state: ClusterState, to: ClusterState) -> None:
    if to in TRANSITIONS[state]:
        assert check_transition(state, to) is to
    else:
        with pytest.raises(IllegalTransition):
            check_transition(state, to)


def test_every_state_is_requested_wanted_leaving_or_ended() -> None:
    assert {ClusterState.REQUESTED} | WANTED_STATES | LEAVING_STATES | ENDED_STATES == set(ClusterState)


def test_ended_states_have_no_transition() -> None:
    assert all(not TRANSITIONS[state] for state in ENDED_STATES)


def test_every_wanted_cluster_can_be_drained() -> None:
    assert all(ClusterState.DRAINING in TRANSITIONS[state] for state in WANTED_STATES)


def test_an_older_sbf_accepts_a_spec_without_new_keys() -> None:
    """Clients omit keys whose value is null. An SBF of version 0.2 refuses every key that is not in ``known``."""
    spec = ClusterSpec.model_validate({"owner": "alice", "hosts": ["brno-h1"]})
    known = {"owner", "shares_with", "sites", "hosts", "guests", "lease_s", "deadline_s"}
    assert spec.model_dump(mode="json", exclude_none=True).keys() == known


@pytest.mark.parametrize("name", ["g1", "g65536"])
def test_no_guest_may_have_a_name_of_the_spread(name: str) -> None:
    text = f"owner: alice\nspread: {{count: 65536, image: x}}\nguests: [{{name: {name}, host: h1, image: x}}]\n"
    assert f"expected each guest to have its own name, got name {name} 2 times" in refusal(text)


@pytest.mark.parametrize("name", ["g", "g0", "g01", "g65537", "g1-1", "g1g1", "h1"])
def test_the_names_of_a_spread_are_not_generated_for_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SBF checks a spec in its event loop, before SBF compares the number of guests with ``limits.guests``."""
    monkeypatch.delattr(GuestSpread, "names")
    guest = f"{{name: {name}, host: h1, image: x}}"
    text = f"owner: alice\nservices: [nfs]\nspread: {{count: 65536, image: x}}\nguests: [{guest}]\n"
    assert read_document(text, "cluster.yaml", ClusterSpec).guests[0].name == name


def test_a_spread_has_the_guests_of_its_prefix_and_numbers() -> None:
    spread = GuestSpread.model_validate({"count": 3, "image": "x", "prefix": "nfs"})
    assert [name for name in ("nfs", "nfs3", "nfs4", "n3") if spread.has_guest(name)] == ["nfs3"]
