"""Members of a network: what carries it is a tree over all its hosts, and nobody's way depends on who else is there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sbf_fakes.world import spec, three_sites

from sbf_service.joining import refuse_moves, refuse_unattached
from sbf_service.paths import ports_of
from sbf_service.wanted import LiveCluster, Network, elements_of, ports_for, wanted
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortRef, VlanId

SITES = ("a", "b")
VLANS = {Name(site): VlanId(100) for site in SITES}


def site(data: st.DataObject, name: str, *, in_one: bool) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Describe a site: a mesh of switches, whole or in pieces, met by two transports; hosts with an uplink or two."""
    size = data.draw(st.integers(1, 5))
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    cables = data.draw(st.lists(st.sampled_from(pairs), max_size=7)) if pairs else []
    cables += [(data.draw(st.integers(0, number - 1)), number) for number in range(1, size) if in_one]
    uplinks = [data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=2, unique=True)) for _ in range(4)]
    ports: dict[int, list[str]] = {number: ["spare"] for number in range(size)}
    links = []
    for number, (one, other) in enumerate(cables):
        ports[one].append(f"c{number}")
        ports[other].append(f"c{number}")
        links.append((f"{name}-s{one}:c{number}", f"{name}-s{other}:c{number}"))
    for host, switches in enumerate(uplinks):
        for number, switch in enumerate(switches):
            ports[switch].append(f"h{host}")
            links.append((f"{name}-h{host}:eth{number}", f"{name}-s{switch}:h{host}"))
    meets = [data.draw(st.integers(0, size - 1)) for _ in range(2)]
    for transport, switch in zip(("core", "other"), meets, strict=True):
        ports[switch].append(transport)
    made = {
        "name": name,
        "attachments": [
            {"transport": t, "port": f"{name}-s{s}:{t}"} for t, s in zip(("core", "other"), meets, strict=True)
        ],
        "switches": [{"name": f"{name}-s{n}", "platform": "fake", "ports": found} for n, found in ports.items()],
        "hosts": [{"name": f"{name}-h{n}", "ports": [f"eth{i}" for i in range(len(s))]} for n, s in enumerate(uplinks)],
    }
    return made, links


def topology(data: st.DataObject, *, in_one: bool) -> Topology:
    """Describe two sites; one of them may prefer another transport than the other does."""
    parts = [site(data, name, in_one=in_one) for name in SITES]
    sites = [made for made, _ in parts]
    if data.draw(st.booleans()):
        sites[0]["attachments"].reverse()
    return Topology.model_validate(
        {
            "name": "mesh",
            "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}, {"name": "other", "kind": "direct"}],
            "sites": sites,
            "links": [{"a": a, "b": b} for _, links in parts for a, b in links],
        }
    )


HOSTS = [f"{name}-h{number}" for name in SITES for number in range(4)]
SOME = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True)


def cluster(key: str, hosts: list[str], transport: str | None, joined: LiveCluster | None = None) -> LiveCluster:
    on = None if transport is None else Name(transport)
    network = None if joined is None else joined.network
    return LiveCluster(key, ClusterKey(key), spec(*hosts), VLANS, on, None, network)


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_however_members_come_and_go_a_network_is_one_tree_and_nobody_is_moved(data: st.DataObject) -> None:
    """What carries it is what would carry one cluster on all these hosts; who joins adds, and who leaves takes away.

    Where the switches of each site are in one piece nobody is refused.
    """
    in_one = data.draw(st.booleans())
    made = topology(data, in_one=in_one)
    try:
        own = cluster("own", data.draw(SOME), None)
        ports = ports_of(made, own.spec)
    except Conflict:
        assert not in_one
        return
    sites = {made.site_of[host].name for host in own.spec.all_hosts}
    transport = made.site(min(sites)).attachments[0].transport if len(sites) > 1 else None
    own = cluster("own", list(own.spec.all_hosts), transport)
    members: dict[str, LiveCluster] = {}
    for step in range(data.draw(st.integers(1, 6))):
        before = ports
        if members and data.draw(st.booleans()):
            del members[data.draw(st.sampled_from(sorted(members)))]
            ports = whole(made, own, members)
            assert ports <= before
        else:
            try:
                own, new = joins(made, own, f"m{step}", data.draw(SOME))
            except Conflict:
                assert not in_one
                continue
            members = {key: moved(one, own) for key, one in (members | {f"m{step}": new}).items()}
            ports = whole(made, own, members)
            assert ports >= before
        hosts = {host for one in (own, *members.values()) for host in one.spec.all_hosts}
        assert ports == ports_of(made, spec(*sorted(hosts)), own.transport)
        all_of_it = [own, *members.values()]
        for name in made.elements:
            placed = [one for one in all_of_it if name in elements_of(ports_for(made, one))]
            assert wanted(name, made, placed) == wanted(name, made, all_of_it)
        for one in all_of_it:
            assert set(one.spec.all_hosts) <= elements_of(ports_for(made, one))


def joins(made: Topology, own: LiveCluster, key: str, hosts: list[str]) -> tuple[LiveCluster, LiveCluster]:
    """Give the network and its new member as SBF makes them. Raises Conflict."""
    on = own.transport
    sites = {made.site_of[host].name for host in (*own.spec.all_hosts, *hosts)}
    if on is None and len(sites) > 1:
        on = made.sites[0].attachments[0].transport
        refuse_moves(made, own, made.transport(on))
    own = moved(own, cluster("own", list(own.spec.all_hosts), on))
    new = cluster(key, hosts, on, own)
    ports_for(made, new)
    return own, new


def moved(one: LiveCluster, own: LiveCluster) -> LiveCluster:
    """Give a cluster with the transport that its network has now."""
    joined = None if one.id == own.id else own.network
    return LiveCluster(one.id, one.key, one.spec, VLANS, own.transport, None, joined)


def whole(made: Topology, own: LiveCluster, members: dict[str, LiveCluster]) -> frozenset[PortRef]:
    return frozenset(port for one in (own, *members.values()) for port in ports_for(made, one))


def test_a_members_part_is_its_own_way_and_what_leads_to_its_network() -> None:
    """Not the network's other hosts, and of the switch at its site only what it needs."""
    found = ports_of(three_sites(), spec("praha-h1"), joined=spec("brno-h1", "brno-h2"))
    assert sorted(found) == ["brno-sw1:uplink", "praha-h1:eth0", "praha-sw1:p1", "praha-sw1:uplink"]


def test_a_member_on_its_networks_host_has_that_hosts_port() -> None:
    found = ports_of(three_sites(), spec("brno-h1"), Name("core"), spec("brno-h1", "praha-h1"))
    assert sorted(found) == ["brno-h1:eth0", "brno-sw1:p1"]


def test_a_network_whose_way_does_not_lead_to_the_transport_is_not_moved() -> None:
    """Its host has two uplinks, to two switches that nothing joins; the first listed carries it, the second is met."""
    switches = [{"name": f"s{n}", "platform": "fake", "ports": ["h", "up"]} for n in (1, 2)]
    site_a = {
        "name": "a",
        "attachments": [{"transport": "near", "port": "s1:up"}, {"transport": "far", "port": "s2:up"}],
        "switches": switches,
        "hosts": [{"name": "h", "ports": ["eth0", "eth1"]}],
    }
    transports = [{"name": "near", "kind": "direct"}, {"name": "far", "kind": "direct"}]
    links = [{"a": "h:eth0", "b": "s1:h"}, {"a": "h:eth1", "b": "s2:h"}]
    made = Topology.model_validate({"name": "t", "transports": transports, "sites": [site_a], "links": links})
    network = cluster("own", ["h"], None)
    refuse_moves(made, network, made.transport("near"))
    with pytest.raises(Conflict) as caught:
        refuse_moves(made, network, made.transport("far"))
    assert str(caught.value) == (
        "network own would be moved to other ports to meet transport far (off h:eth0, s1:h): "
        "choose a host at its own site"
    )


def test_a_site_that_is_not_on_the_networks_transport_is_named() -> None:
    network = LiveCluster("n", ClusterKey("n"), spec("brno-h1"), VLANS, Name("xponder"))
    refuse_unattached(network, [])
    with pytest.raises(Conflict, match="network n is joined by transport xponder, to which site brno is not attached"):
        refuse_unattached(network, three_sites().sites[:1])


def test_a_members_network_is_the_one_it_joined() -> None:
    own = cluster("own", ["brno-h1"], None)
    assert cluster("m", ["brno-h2"], None, own).network == Network("own", ClusterKey("own"), own.spec)
