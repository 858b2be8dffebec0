from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sbf_fakes.world import spec, three_sites

from sbf_service.domain import network_conflicts
from sbf_service.domain.network_conflicts import (
    check_paths_unchanged,
    check_ports_exclusive,
    check_ports_free,
    check_ports_stay_access,
    check_sites_attached,
    find_access_ports,
)
from sbf_service.domain.paths import ClusterNetwork, LiveCluster, find_cluster_ports, find_path_ports, list_elements
from sbf_service.domain.wanted import compute_wanted
from virtcloud.model.errors import Conflict
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortName, PortRef, VlanId
from virtcloud.model.vlans import VlanSet


def with_access(*hosts: str) -> Topology:
    document = three_sites().model_dump(mode="json")
    for link in document["links"]:
        link["access"] = link["a"].partition(":")[0] in hosts
    return Topology.model_validate(document)


def user(key: str, *hosts: str, network: str | None = None) -> LiveCluster:
    return LiveCluster(network or key, ClusterKey(key), spec(*hosts), {})


def test_a_switchs_wanted_state_lists_access_ports() -> None:
    cluster = LiveCluster("a", ClusterKey("a"), spec("brno-h1", "brno-h2"), {Name("brno"): VlanId(100)})
    assert compute_wanted(Name("brno-sw1"), with_access("brno-h2"), [cluster]) == SwitchWanted(
        ports={
            PortName("p1"): VlanSet([100]),
            PortName("p2"): VlanSet([100]),
            PortName("uplink"): VlanSet(),
        },
        access=(PortName("p2"),),
    )


def test_a_hosts_segment_on_an_access_port_is_untagged() -> None:
    cluster = LiveCluster("a", ClusterKey("a"), spec("brno-h1", "brno-h2"), {Name("brno"): VlanId(100)})
    hosts = (compute_wanted(Name(host), with_access("brno-h2"), [cluster]) for host in ("brno-h1", "brno-h2"))
    assert [segment.untagged for host in hosts for segment in host.segments] == [False, True]


def test_a_clusters_access_ports_are_those_of_switches() -> None:
    assert find_access_ports(with_access("brno-h2", "praha-h1"), user("a", "brno-h1", "brno-h2")) == {"brno-sw1:p2"}


def test_a_conflict_names_the_access_port_and_its_cluster() -> None:
    with pytest.raises(Conflict) as caught:
        check_ports_exclusive(with_access("brno-h2"), [user("first", "brno-h2"), user("second", "brno-h1", "brno-h2")])
    assert str(caught.value) == (
        "cluster second needs access port brno-sw1:p2, but cluster first uses this port, and an access port carries "
        "only one network: end cluster first if it still runs, and wait until cluster first has ended, or choose a "
        "host on a trunk"
    )


def test_a_conflict_does_not_name_clusters_hidden_from_the_caller() -> None:
    with pytest.raises(Conflict) as caught:
        check_ports_free(
            with_access("brno-h2"), user("second", "brno-h2"), [user("first", "brno-h2")], lambda owner: owner == "bob"
        )
    assert str(caught.value) == (
        "cluster second needs access port brno-sw1:p2, but another cluster uses this port, and an access port carries "
        "only one network: try again when that cluster has ended, or choose a host on a trunk"
    )


def test_clusters_share_a_trunk() -> None:
    check_ports_exclusive(with_access("brno-h2"), [user("first", "brno-h1", "brno-h2"), user("second", "brno-h1")])


def test_a_cluster_without_a_path_blocks_no_port() -> None:
    check_ports_exclusive(with_access("brno-h2"), [user("gone", "ostrava-h1"), user("second", "brno-h2")])


def without_transport(topology: Topology, name: str) -> Topology:
    document = topology.model_dump(mode="json")
    next(site for site in document["sites"] if site["name"] == name)["attachments"] = []
    return Topology.model_validate(document)


def test_an_ending_cluster_without_a_path_keeps_its_access_ports() -> None:
    """Site ``praha`` was detached before host ``brno-h2`` removed the cluster. The host still uses its access port."""
    topology, ending = without_transport(with_access("brno-h2"), "praha"), user("ending", "brno-h2", "praha-h1")
    second = user("second", "brno-h2")
    for clusters in ([ending, second], [second, ending]):
        with pytest.raises(Conflict) as caught:
            check_ports_exclusive(topology, clusters)
        assert str(caught.value) == (
            "cluster second needs access port brno-sw1:p2, but cluster ending may still use this port, and an access "
            "port carries only one network: wait until cluster ending has ended, or choose a host on a trunk"
        )
    check_ports_exclusive(topology, [ending, user("second", "brno-h1")])
    with pytest.raises(Conflict) as caught:
        check_ports_stay_access(topology, without_transport(three_sites(), "praha"), [ending])
    assert str(caught.value) == (
        "cluster ending uses access port brno-sw1:p2, which is no access port in the new topology: "
        "wait until cluster ending has ended"
    )


def test_ending_clusters_without_a_path_need_no_access_port() -> None:
    """Host ``brno-h1`` also has an access link, which the clusters did not use before a site was detached."""
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["p2"]})
    next(one for one in document["sites"][0]["hosts"] if one["name"] == "brno-h1")["ports"].append("eth1")
    document["links"].append({"a": "brno-h1:eth1", "b": "brno-sw2:p2", "access": True})
    attached = Topology.model_validate(document)
    ending = [user(key, "brno-h1", "praha-h1") for key in ("first", "second")]
    for topology in (attached, without_transport(attached, "praha")):
        check_ports_exclusive(topology, ending)
        check_ports_exclusive(topology, [replace(one, quarantined=True) for one in ending])


def test_conflicts_of_other_clusters_do_not_concern_a_new_cluster() -> None:
    others = [user("first", "brno-h2"), user("second", "brno-h2")]
    check_ports_free(with_access("brno-h1", "brno-h2"), user("new", "brno-h1"), others, lambda _owner: False)


@pytest.mark.parametrize(
    ("is_seen", "remedy"),
    [
        (
            True,
            "carries only one network: wait until every element has confirmed the removal; if an element will never",
        ),
        (False, "carries only one network: that cluster has ended: try again later, or choose a host on a trunk"),
    ],
)
def test_the_error_names_the_remedy_for_a_quarantined_clusters_port(is_seen: bool, remedy: str) -> None:
    ended = replace(user("first", "brno-h2"), quarantined=True)
    with pytest.raises(Conflict, match=remedy):
        check_ports_free(with_access("brno-h2"), user("second", "brno-h2"), [ended], lambda _owner: is_seen)


def test_an_access_port_in_quarantine_stays_an_access_port() -> None:
    ended = replace(user("first", "brno-h2"), quarantined=True)
    with pytest.raises(Conflict, match="no access port in the new topology: wait until every element has confirmed"):
        check_ports_stay_access(with_access("brno-h2"), with_access(), [ended])


def test_clusters_of_one_network_share_an_access_port() -> None:
    check_ports_exclusive(
        with_access("brno-h2"), [user("own", "brno-h2", network="n"), user("member", "brno-h2", network="n")]
    )


SITES = ("a", "b")
VLANS = {Name(site): VlanId(100) for site in SITES}


def site(data: st.DataObject, name: str, *, in_one: bool) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a site and its links: a mesh of switches, two transports, and hosts with one or two uplinks.

    If ``in_one`` is true, all switches of the site are connected.
    """
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
    made: dict[str, Any] = {
        "name": name,
        "attachments": [
            {"transport": t, "port": f"{name}-s{s}:{t}"} for t, s in zip(("core", "other"), meets, strict=True)
        ],
        "switches": [{"name": f"{name}-s{n}", "platform": "fake", "ports": found} for n, found in ports.items()],
        "hosts": [{"name": f"{name}-h{n}", "ports": [f"eth{i}" for i in range(len(s))]} for n, s in enumerate(uplinks)],
    }
    return made, links


def topology(data: st.DataObject, *, in_one: bool) -> Topology:
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
def test_members_join_and_leave_without_changing_other_members_paths(data: st.DataObject) -> None:
    """A network and its members together use the same ports as a single cluster that has all their hosts.

    If the switches of each site are connected, no member is refused.
    """
    in_one = data.draw(st.booleans())
    made = topology(data, in_one=in_one)
    try:
        own = cluster("own", data.draw(SOME), None)
        ports = find_path_ports(made, own.spec)
    except Conflict:
        assert not in_one
        return
    sites = {made.site_of[host].name for host in own.spec.all_hosts}
    transport = made.site(min(sites)).attachments[0].transport if len(sites) > 1 else None
    own = cluster("own", list(own.spec.all_hosts), transport)
    members: dict[str, LiveCluster] = {}
    for step in range(data.draw(st.integers(1, 6))):
        before = ports
        is_removed = bool(members) and data.draw(st.booleans())
        if is_removed:
            del members[data.draw(st.sampled_from(sorted(members)))]
            ports = network_ports(made, own, members)
            assert ports <= before
        else:
            try:
                own, new = joins(made, own, f"m{step}", data.draw(SOME))
            except Conflict:
                assert not in_one
                continue
            members = {key: with_present_transport(one, own) for key, one in (members | {f"m{step}": new}).items()}
            ports = network_ports(made, own, members)
            assert ports >= before
        hosts = {host for one in (own, *members.values()) for host in one.spec.all_hosts}
        assert ports == find_path_ports(made, spec(*sorted(hosts)), own.transport)
        all_of_it = [own, *members.values()]
        for name in made.elements:
            placed = [one for one in all_of_it if name in list_elements(find_cluster_ports(made, one))]
            assert compute_wanted(name, made, placed) == compute_wanted(name, made, all_of_it)
        for one in all_of_it:
            assert set(one.spec.all_hosts) <= list_elements(find_cluster_ports(made, one))


def joins(made: Topology, own: LiveCluster, key: str, hosts: list[str]) -> tuple[LiveCluster, LiveCluster]:
    """Return the network and its new member, as they are after the join. Raise Conflict if the member cannot join."""
    on = own.transport
    sites = {made.site_of[host].name for host in (*own.spec.all_hosts, *hosts)}
    if on is None and len(sites) > 1:
        on = made.sites[0].attachments[0].transport
        check_paths_unchanged(made, own, made.transport(on))
    own = with_present_transport(own, cluster("own", list(own.spec.all_hosts), on))
    new = cluster(key, hosts, on, own)
    find_cluster_ports(made, new)
    return own, new


def with_present_transport(one: LiveCluster, own: LiveCluster) -> LiveCluster:
    joined = None if one.id == own.id else own.network
    return LiveCluster(one.id, one.key, one.spec, VLANS, own.transport, None, joined)


def network_ports(made: Topology, own: LiveCluster, members: dict[str, LiveCluster]) -> frozenset[PortRef]:
    return frozenset(port for one in (own, *members.values()) for port in find_cluster_ports(made, one))


def test_ports_that_a_network_would_gain_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gained = {None: frozenset[str](), Name("core"): frozenset({"brno-sw1:x"})}
    monkeypatch.setattr(network_conflicts, "find_path_ports", lambda _topology, _spec, on: gained[on])
    made = three_sites()
    with pytest.raises(Conflict, match="to reach transport core, and would also use brno-sw1:x: choose a host"):
        check_paths_unchanged(made, cluster("own", ["brno-h1"], None), made.transport("core"))


def test_a_members_path_leads_to_its_network() -> None:
    found = find_path_ports(three_sites(), spec("praha-h1"), joined=spec("brno-h1", "brno-h2"))
    assert sorted(found) == ["brno-sw1:uplink", "praha-h1:eth0", "praha-sw1:p1", "praha-sw1:uplink"]


def test_a_member_on_its_networks_host_has_that_hosts_port() -> None:
    found = find_path_ports(three_sites(), spec("brno-h1"), Name("core"), spec("brno-h1", "praha-h1"))
    assert sorted(found) == ["brno-h1:eth0", "brno-sw1:p1"]


def test_a_network_is_not_moved_to_reach_a_transport() -> None:
    """The host has uplinks to two unconnected switches.

    The network uses the first switch. Transport ``far`` is attached to the second switch.
    """
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
    check_paths_unchanged(made, network, made.transport("near"))
    with pytest.raises(Conflict) as caught:
        check_paths_unchanged(made, network, made.transport("far"))
    assert str(caught.value) == (
        "network own would need other ports to reach transport far, and would no longer use h:eth0, s1:h: "
        "choose a host at the site of the network"
    )


def test_the_error_names_a_site_without_the_networks_transport() -> None:
    network = LiveCluster("n", ClusterKey("n"), spec("brno-h1"), VLANS, Name("xponder"))
    check_sites_attached(network, [])
    with pytest.raises(
        Conflict, match="network n uses transport xponder, but site brno is not attached to this transport"
    ):
        check_sites_attached(network, three_sites().sites[:1])


def test_a_member_belongs_to_the_network_that_it_joined() -> None:
    own = cluster("own", ["brno-h1"], None)
    assert cluster("m", ["brno-h2"], None, own).network == ClusterNetwork("own", ClusterKey("own"), own.spec)
