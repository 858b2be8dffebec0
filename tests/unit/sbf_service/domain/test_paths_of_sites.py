"""Tests of networks whose spec names sites, but no hosts."""

from itertools import chain

import pytest
from pydantic import ValidationError
from support.sbf_fakes.world import three_sites

from sbf_service.domain.paths import find_path_ports
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import PortRef

LINE = {
    "name": "line",
    "sites": [
        {
            "name": "brno",
            "switches": [{"name": f"sw{n}", "platform": "fake", "ports": ["h", "a", "b"]} for n in (1, 2, 3)],
            "hosts": [{"name": f"h{n}", "ports": ["eth0"]} for n in (1, 2, 3)],
        }
    ],
    "links": [
        *({"a": f"h{n}:eth0", "b": f"sw{n}:h"} for n in (1, 2, 3)),
        {"a": "sw1:b", "b": "sw2:a"},
        {"a": "sw2:b", "b": "sw3:a"},
    ],
}


def wanted(*hosts: str, **keys: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"owner": "alice", "hosts": hosts, **keys})


def ports(topology: Topology, *members: str, sites: tuple[str, ...]) -> list[str]:
    root = wanted(sites=sites)
    found = [
        find_path_ports(topology, root),
        *(find_path_ports(topology, wanted(one, joins="r"), None, root) for one in members),
    ]
    return sorted(chain.from_iterable(found))


def joined(topology: Topology, carried: list[str], one: str, other: str) -> bool:
    """Return whether a chain of links that carry the network at both ends connects ``one`` and ``other``."""
    seen, todo = set(), {one}
    while todo:
        here = todo.pop()
        seen.add(here)
        ends = [end for end in carried if end.startswith(f"{here}:")]
        peers = (topology.peers.get(PortRef(end)) for end in ends)
        todo |= {str(peer.element) for peer in peers if peer is not None and str(peer) in carried} - seen
    return other in seen


def test_a_single_site_carries_nothing_before_a_member_joins() -> None:
    assert ports(Topology.model_validate(LINE), sites=("brno",)) == []


def test_members_at_one_site_connect_at_the_tree_root() -> None:
    topology = Topology.model_validate(LINE)
    carried = ports(topology, "h2", "h3", sites=("brno",))
    assert joined(topology, carried, "h2", "h3")
    assert {"h1:eth0", "sw1:h"}.isdisjoint(carried)


def test_the_end_of_a_member_disconnects_no_other_member() -> None:
    topology = Topology.model_validate(LINE)
    assert joined(topology, ports(topology, "h1", "h3", sites=("brno",)), "h1", "h3")


def test_several_sites_are_connected_before_a_member_joins() -> None:
    topology = three_sites()
    at_once = ports(topology, sites=("brno", "praha"))
    assert at_once
    assert {port.partition("-")[0] for port in at_once} == {"brno", "praha"}
    assert not any(port.startswith(("brno-h", "praha-h")) for port in at_once)


def test_members_of_several_sites_are_connected() -> None:
    topology = three_sites()
    carried = ports(topology, "brno-h1", "praha-h1", sites=("brno", "praha"))
    uplinks = [port for port in carried if topology.peers.get(PortRef(port)) is None]
    assert len(uplinks) == 2  # the ports at which the sites are attached to their transport
    for host, uplink in (("brno-h1", "brno"), ("praha-h1", "praha")):
        edge = next(port.partition(":")[0] for port in uplinks if port.startswith(uplink))
        assert joined(topology, carried, host, edge)


def test_a_site_with_unconnected_switches_needs_a_host() -> None:
    apart = Topology.model_validate({**LINE, "links": LINE["links"][:4]})
    with pytest.raises(Conflict, match="site brno has groups of switches without a link between them: name a host"):
        ports(apart, sites=("brno",))


def test_a_site_without_switches_carries_no_network() -> None:
    empty = Topology.model_validate({"name": "empty", "sites": [{"name": "wien"}]})
    with pytest.raises(Conflict, match="site wien has no switch to carry a network: add a switch, or name another"):
        ports(empty, sites=("wien",))


def test_the_error_names_an_unknown_site() -> None:
    with pytest.raises(NotFound, match="site wien is not known"):
        ports(three_sites(), sites=("wien",))


def test_a_member_requires_hosts_and_must_not_list_sites() -> None:
    with pytest.raises(ValidationError, match="expected at least one host or guest, got none"):
        wanted(joins="r")
    with pytest.raises(
        ValidationError, match="expected the key sites only for a new network; this cluster joins network r"
    ):
        wanted("h1", joins="r", sites=("brno",))
