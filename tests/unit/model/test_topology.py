"""Tests of errors in a topology. Each message contains the file, the line, the key and the expectation."""

import pytest
from pydantic import ValidationError

from virtcloud.model.element import Gateway, Host
from virtcloud.model.errors import BadDocument, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.yaml_document import read_document

GOOD = """\
name: two-sites
transports:
  - {name: core, kind: qinq, s_tag: 2000}
sites:
  - name: brno
    attachments:
      - {transport: core, port: "brno-sw1:uplink"}
    switches:
      - {name: brno-sw1, platform: linux_bridge, ports: [p1, p2, uplink]}
    hosts:
      - {name: brno-h1, ports: [eth0]}
links:
  - {a: "brno-h1:eth0", b: "brno-sw1:p1"}
"""

ALONE = {
    "name": "one",
    "sites": [{"name": "brno", "switches": [{"name": "sw", "platform": "fake", "ports": ["p1"]}]}],
}


def read(text: str) -> Topology:
    return read_document(text, "site.yaml", Topology)


def refusal(old: str, new: str) -> str:
    assert old in GOOD
    with pytest.raises(BadDocument) as caught:
        read(GOOD.replace(old, new))
    return str(caught.value)


def test_a_valid_topology_is_parsed() -> None:
    topology = read(GOOD)
    assert topology.peers["brno-h1:eth0"] == "brno-sw1:p1"
    assert topology.site_of["brno-h1"].name == "brno"


def test_elements_are_equal_if_class_and_values_are_equal() -> None:
    host, same, other = (Host(name=Name(name), ports=(PortName("eth0"),)) for name in ("h1", "h1", "h2"))
    assert host == same
    assert host not in (other, Gateway(name=host.name, ports=host.ports), "h1", None)


def test_unknown_keys_make_elements_different() -> None:
    class OpenHost(Host, extra="allow"):
        """A host with any further keys."""

    values = {"name": "h1", "ports": ["eth0"]}
    assert OpenHost.model_validate(values) == OpenHost.model_validate(values)
    assert OpenHost.model_validate(values) != OpenHost.model_validate(values | {"rack": 7})


def test_an_s_tag_out_of_range_is_refused() -> None:
    assert refusal("2000", "5000") == ("site.yaml:3: transports.0.s_tag: expected a VLAN ID from 1 to 4094, got 5000")


def test_an_unknown_key_is_refused_at_its_line() -> None:
    message = refusal("platform: linux_bridge", "platform: linux_bridge, colour: red")
    assert message == "site.yaml:9: sites.0.switches.0.colour: unknown key; check its spelling"


def test_text_that_is_not_yaml_is_refused_at_its_line() -> None:
    assert refusal("name: two-sites", "name: [").startswith("site.yaml:3: not YAML:")


def test_a_host_without_a_link_to_a_switch_is_refused() -> None:
    assert refusal('  - {a: "brno-h1:eth0", b: "brno-sw1:p1"}\n', "  []\n") == (
        "site.yaml:11: sites.0.hosts.0: host brno-h1 has no link to a switch: "
        "expected a link from one of its ports (eth0) to a port of a switch at brno"
    )


def test_two_links_on_one_port_are_refused() -> None:
    message = refusal("sw1:p1", "sw1:uplink")
    assert message == "site.yaml:13: links.0.b: port brno-sw1:uplink: expected at most one link on a port, got two"


def test_a_link_to_an_unknown_port_lists_the_known_ports() -> None:
    assert "port brno-sw1:p9: expected a port of brno-sw1 (p1, p2, uplink), got p9" in refusal("sw1:p1", "sw1:p9")


def test_an_attachment_to_an_unknown_transport_is_refused() -> None:
    assert "site brno: expected a known transport (core), got cor" in refusal("transport: core", "transport: cor")


def test_two_elements_with_the_same_name_are_refused() -> None:
    message = refusal("{name: brno-h1, ports: [eth0]}", "{name: brno-sw1, ports: [eth0]}")
    assert "expected each element and transport to have its own name, got brno-sw1 twice" in message


def test_an_unknown_site_lists_the_known_sites() -> None:
    with pytest.raises(NotFound, match="site ostrava is not known; known sites: brno"):
        read(GOOD).site("ostrava")


def test_a_fault_in_a_nested_key_has_the_keys_line() -> None:
    assert (
        refusal("hosts:", "hosst:") == "site.yaml:10: sites.0.hosst: unknown key; check its spelling (similar: hosts)"
    )


def test_an_access_link_has_untagged_ports_at_both_ends() -> None:
    topology = read(GOOD.replace('"brno-sw1:p1"}', '"brno-sw1:p1", access: true}'))
    assert topology.access_ports == {"brno-h1:eth0", "brno-sw1:p1"}


def test_an_access_link_between_switches_is_refused() -> None:
    second = "{name: brno-sw2, platform: linux_bridge, ports: [x]}"
    text = GOOD.replace("ports: [p1, p2, uplink]}", f"ports: [p1, p2, uplink]}}\n      - {second}")
    with pytest.raises(BadDocument) as caught:
        read(text + '  - {a: "brno-sw1:p2", b: "brno-sw2:x", access: true}\n')
    assert str(caught.value) == (
        "site.yaml:15: links.1.access: access link brno-sw1:p2 to brno-sw2:x: "
        "expected a host or gateway at one end, a switch at the other"
    )


AGGREGATES = GOOD.replace("ports: [p1, p2, uplink]", "ports: [Po1, uplink], aggregates: {Po1: [p1, p2]}").replace(
    "ports: [eth0]", "ports: [bond0], aggregates: {bond0: [eth0, eth1]}"
)
AGGREGATES = AGGREGATES.replace("brno-h1:eth0", "brno-h1:bond0").replace("brno-sw1:p1", "brno-sw1:Po1")


def test_an_aggregate_is_one_port_of_several_cables() -> None:
    topology = read(AGGREGATES)
    assert topology.peers["brno-h1:bond0"] == "brno-sw1:Po1"
    assert topology.host("brno-h1").members(PortName("bond0")) == ("eth0", "eth1")
    assert topology.element("brno-sw1").members(PortName("uplink")) == ("uplink",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{Po1: [", "{Po2: [", "aggregate brno-sw1:Po2: expected a port of brno-sw1 (Po1, uplink)"),
        ("[Po1, uplink]", "[Po1, p2, uplink]", "port brno-sw1:p2: expected no member of an aggregate among the"),
        ("[p1, p2]", "[p1, p1]", "port brno-sw1:p1: expected at most one use as a member of an aggregate, got two"),
        (
            "[eth0, eth1]",
            "[eth0]",
            "link brno-h1:bond0 to brno-sw1:Po1: expected the same number of cables at both ends, got 1 ",
        ),
    ],
    ids=["of no port", "member managed", "member twice", "cables missing"],
)
def test_an_impossible_aggregate_is_refused(old: str, new: str, message: str) -> None:
    assert old in AGGREGATES
    with pytest.raises(BadDocument) as caught:
        read(AGGREGATES.replace(old, new))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"kind": "evpn", "vnis": "100-199", "asn": 1}, {"kind": "evpn", "vnis": "150-250", "asn": 2}, "150-199"),
        ({"kind": "vpls", "vpn_id": 7, "asn": 1}, {"kind": "vpls", "vpn_ids": "1-10", "asn": 1}, "7"),
        ({"kind": "qinq", "s_tag": 2000}, {"kind": "qinq", "s_tags": "2000-2999"}, "2000"),
    ],
)
def test_transports_of_one_kind_have_disjoint_service_ids(
    first: dict[str, object], second: dict[str, object], both: str
) -> None:
    transports = [{"name": "a"} | first, {"name": "b"} | second]
    with pytest.raises(ValidationError, match=rf"transports a and b of kind .* expected .* got {both} in both"):
        Topology.model_validate(ALONE | {"transports": transports})


def test_transports_of_different_kinds_may_share_service_ids() -> None:
    transports = [
        {"name": "a", "kind": "evpn", "vnis": "100-199", "asn": 1},
        {"name": "b", "kind": "vpls", "vpn_ids": "100-199", "asn": 1},
    ]
    assert len(Topology.model_validate(ALONE | {"transports": transports}).transports) == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"publish_ports": "40000-39999"}, "expected a range of ports"),
        ({"publish_ports": "80-90"}, "expected a range of ports"),
        ({"publish_ports": "60000-65536"}, "expected a range of ports"),
        ({"publish_ports": "40000-40999", "addresses": []}, "expected an address with `publish_ports`"),
        ({"publish_ports": "2000-3000"}, "which contains 2222"),
        ({"publish_ports": "1100-1999"}, "which contains 1194"),
    ],
)
def test_a_bad_range_of_published_ports_is_refused(changes: dict[str, object], text: str) -> None:
    outside = {"interface": "eth1", "addresses": ["198.51.100.7"]} | changes
    servers = {"ssh": {"address": "gw.example.org"}, "vpn": {"address": "gw.example.org"}}
    described = {"name": "gw", "ports": ["eth0"], "outside": outside} | servers
    with pytest.raises(ValidationError, match=text):
        Gateway.model_validate(described)
