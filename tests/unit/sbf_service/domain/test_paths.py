from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sbf_fakes.world import spec, three_sites

from sbf_service.domain.paths import find_path_ports, find_sites
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef


def topology(
    sites: Sequence[Mapping[str, object]], links: list[tuple[str, str]], transports: tuple[str, ...] = ()
) -> Topology:
    return Topology.model_validate(
        {
            "name": "test",
            "transports": [{"name": name, "kind": "qinq", "s_tag": 2000} for name in transports],
            "sites": sites,
            "links": [{"a": a, "b": b} for a, b in links],
        }
    )


def switch(name: str, *ports: str) -> dict[str, object]:
    return {"name": name, "platform": "fake", "ports": list(ports)}


def host(name: str, *ports: str) -> dict[str, object]:
    return {"name": name, "ports": list(ports or ("eth0",))}


def ports(found: frozenset[PortRef]) -> list[str]:
    return sorted(found)


TRIANGLE: dict[str, Any] = {
    "name": "brno",
    "switches": [
        switch("sw1", "h", "a", "b"),
        switch("sw2", "h", "a", "b"),
        switch("sw3", "h", "a", "b"),
    ],
    "hosts": [host("h1"), host("h2"), host("h3")],
}
TRIANGLE_LINKS = [
    ("h1:eth0", "sw1:h"),
    ("h2:eth0", "sw2:h"),
    ("h3:eth0", "sw3:h"),
    ("sw1:a", "sw2:a"),
    ("sw2:b", "sw3:b"),
    ("sw3:a", "sw1:b"),
]


def test_one_switch_carries_a_cluster_on_host_ports_only() -> None:
    assert ports(find_path_ports(three_sites(), spec("brno-h1", "brno-h2"))) == [
        "brno-h1:eth0",
        "brno-h2:eth0",
        "brno-sw1:p1",
        "brno-sw1:p2",
    ]


def test_several_sites_are_joined_over_their_edge_ports() -> None:
    assert ports(find_path_ports(three_sites(), spec("brno-h1", "plzen-h2"))) == [
        "brno-h1:eth0",
        "brno-sw1:p1",
        "brno-sw1:uplink",
        "plzen-h2:eth0",
        "plzen-sw1:p2",
        "plzen-sw1:uplink",
    ]


def test_hosts_without_guests_are_on_the_path() -> None:
    wanted = spec("brno-h1", hosts=["brno-h2"])
    assert "brno-sw1:p2" in find_path_ports(three_sites(), wanted)


def test_the_path_in_a_ring_of_switches_has_no_loop() -> None:
    found = find_path_ports(topology([TRIANGLE], TRIANGLE_LINKS), spec("h1", "h2", "h3"))
    assert [port for port in ports(found) if port[-1] in "ab"] == ["sw1:a", "sw1:b", "sw2:a", "sw3:a"]


def test_switches_off_the_path_carry_nothing() -> None:
    found = find_path_ports(topology([TRIANGLE], TRIANGLE_LINKS), spec("h1", "h2"))
    assert ports(found) == ["h1:eth0", "h2:eth0", "sw1:a", "sw1:h", "sw2:a", "sw2:h"]


def test_switches_on_the_path_carry_the_vlan_on_both_ports() -> None:
    chain = {
        "name": "brno",
        "switches": [switch("sw1", "h", "x"), switch("sw2", "x", "y"), switch("sw3", "y", "h")],
        "hosts": [host("h1"), host("h3")],
    }
    links = [("h1:eth0", "sw1:h"), ("sw1:x", "sw2:x"), ("sw2:y", "sw3:y"), ("h3:eth0", "sw3:h")]
    found = find_path_ports(topology([chain], links), spec("h1", "h3"))
    assert ports(found) == ["h1:eth0", "h3:eth0", "sw1:h", "sw1:x", "sw2:x", "sw2:y", "sw3:h", "sw3:y"]


def test_the_tree_of_a_site_starts_at_its_edge_switch() -> None:
    brno = TRIANGLE | {
        "switches": [*TRIANGLE["switches"][:2], switch("sw3", "h", "a", "b", "up")],
        "attachments": [{"transport": "core", "port": "sw3:up"}],
    }
    praha = {
        "name": "praha",
        "switches": [switch("psw", "h", "up")],
        "hosts": [host("p1")],
        "attachments": [{"transport": "core", "port": "psw:up"}],
    }
    found = find_path_ports(
        topology([brno, praha], [*TRIANGLE_LINKS, ("p1:eth0", "psw:h")], ("core",)), spec("h1", "h2", "p1")
    )
    assert [port for port in ports(found) if port.startswith("sw3")] == ["sw3:a", "sw3:b", "sw3:up"]


def test_the_first_of_two_parallel_links_is_used() -> None:
    pair = {
        "name": "brno",
        "switches": [switch("sw1", "h", "z", "a"), switch("sw2", "h", "z", "a")],
        "hosts": [host("h1"), host("h2")],
    }
    links = [("h1:eth0", "sw1:h"), ("h2:eth0", "sw2:h"), ("sw1:a", "sw2:a"), ("sw1:z", "sw2:z")]
    assert "sw1:z" in find_path_ports(topology([pair], links), spec("h1", "h2"))
    assert "sw1:a" not in find_path_ports(topology([pair], links), spec("h1", "h2"))


def test_a_host_is_reached_by_its_first_linked_port() -> None:
    one = {"name": "brno", "switches": [switch("sw1", "x", "y")], "hosts": [host("h1", "eth0", "eth1", "eth2")]}
    links = [("h1:eth2", "sw1:x"), ("h1:eth1", "sw1:y")]
    assert ports(find_path_ports(topology([one], links), spec("h1"))) == ["h1:eth1", "sw1:y"]


TWO_UPLINKS = TRIANGLE | {"hosts": [host("h1", "eth0", "eth1"), host("h2"), host("h3")]}


def ring(*without: str) -> list[tuple[str, str]]:
    """Return the links of a ring of three switches, except links of the ports in ``without``.

    Host h1 is linked to sw1 and sw3.
    """
    second = {"name": "h1", "ports": ["eth0", "eth1"]}
    assert TWO_UPLINKS["hosts"][0] == second
    links = [("h1:eth1", "sw3:x"), *TRIANGLE_LINKS]
    return [link for link in links if not set(link) & set(without)]


def ring_ports(*hosts: str, without: tuple[str, ...] = ()) -> list[str]:
    site = TWO_UPLINKS | {"switches": [*TRIANGLE["switches"][:2], switch("sw3", "h", "a", "b", "x")]}
    return ports(find_path_ports(topology([site], ring(*without)), spec(*hosts)))


def test_only_one_uplink_of_a_host_is_used() -> None:
    assert ring_ports("h1", "h3") == ["h1:eth0", "h3:eth0", "sw1:b", "sw1:h", "sw3:a", "sw3:h"]


def test_the_second_uplink_replaces_a_removed_first_one() -> None:
    assert ring_ports("h1", "h3", without=("h1:eth0",)) == ["h1:eth1", "h3:eth0", "sw3:h", "sw3:x"]


def test_the_second_uplink_is_used_if_the_first_is_unreachable() -> None:
    found = ring_ports("h1", "h2", without=("sw1:a", "sw1:b"))
    assert found == ["h1:eth1", "h2:eth0", "sw2:b", "sw2:h", "sw3:b", "sw3:x"]


def test_a_removed_link_is_bypassed_by_the_ring() -> None:
    assert ring_ports("h2", "h3", without=("sw2:b",)) == [
        "h2:eth0",
        "h3:eth0",
        "sw1:a",
        "sw1:b",
        "sw2:a",
        "sw2:h",
        "sw3:a",
        "sw3:h",
    ]


def test_the_first_shared_transport_by_preference_is_used() -> None:
    def attached(name: str, *transports: str) -> dict[str, object]:
        return {
            "name": name,
            "attachments": [{"transport": one, "port": f"{name}-sw:{one}"} for one in transports],
            "switches": [switch(f"{name}-sw", "h", *transports)],
            "hosts": [host(f"{name}-h")],
        }

    sites = [attached("brno", "xponder", "vpls", "core"), attached("praha", "core", "vpls")]
    made = topology(sites, [("brno-h:eth0", "brno-sw:h"), ("praha-h:eth0", "praha-sw:h")], ("xponder", "vpls", "core"))
    edges = [port for port in ports(find_path_ports(made, spec("brno-h", "praha-h"))) if port.endswith("vpls")]
    assert edges == ["brno-sw:vpls", "praha-sw:vpls"]


def test_the_error_names_sites_without_a_common_transport() -> None:
    sites = [
        {
            "name": "brno",
            "attachments": [{"transport": "core", "port": "bsw:up"}],
            "switches": [switch("bsw", "h", "up")],
            "hosts": [host("bh")],
        },
        {"name": "praha", "switches": [switch("psw", "h")], "hosts": [host("ph")]},
    ]
    with pytest.raises(Conflict) as caught:
        find_path_ports(topology(sites, [("bh:eth0", "bsw:h"), ("ph:eth0", "psw:h")], ("core",)), spec("bh", "ph"))
    assert str(caught.value) == (
        "no transport connects brno, praha: brno is on core; praha is on none; attach the sites to a "
        "common transport, or choose other hosts"
    )


def test_the_error_names_unconnected_switches() -> None:
    with pytest.raises(Conflict, match="switch sw2 has no path to switch sw1 within their site: link the switches"):
        find_path_ports(topology([TRIANGLE], TRIANGLE_LINKS[:3]), spec("h1", "h2"))


def test_an_unknown_host_is_named_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="host nowhere is not known; known hosts: brno-h1, brno-h2"):
        find_sites(three_sites(), [Name("nowhere")])


@settings(deadline=None)
@given(st.data())
def test_a_clusters_path_is_a_tree_over_its_hosts(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 7))
    tree = [(data.draw(st.integers(0, n - 1)), n) for n in range(1, size)]
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    extra = data.draw(st.lists(st.sampled_from(pairs), max_size=6))
    ends = [(a, f"l{n}", b) for n, (a, b) in enumerate([*tree, *extra])]
    switches = [switch(f"s{n}", "h", *(port for a, port, b in ends if n in {a, b})) for n in range(size)]
    site = {"name": "brno", "switches": switches, "hosts": [host(f"h{n}") for n in range(size)]}
    links = [(f"h{n}:eth0", f"s{n}:h") for n in range(size)] + [(f"s{a}:{p}", f"s{b}:{p}") for a, p, b in ends]
    hosts = data.draw(st.lists(st.sampled_from([f"h{n}" for n in range(size)]), min_size=1, unique=True))

    found = find_path_ports(topology([site], links), spec(*hosts))

    used = [(a, b) for a, port, b in ends if f"s{a}:{port}" in found]
    assert all((f"s{a}:{port}" in found) == (f"s{b}:{port}" in found) for a, port, b in ends)
    nodes = {int(name[1:]) for name in hosts} | {n for pair in used for n in pair}
    assert len(used) == len(nodes) - 1
    assert _joined(used, int(hosts[0][1:])) == nodes


def _joined(links: list[tuple[int, int]], start: int) -> set[int]:
    reached, before = {start}, set[int]()
    while reached != before:
        before = set(reached)
        for a, b in links:
            if reached & {a, b}:
                reached |= {a, b}
    return reached
