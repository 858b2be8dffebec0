"""Access ports: one cluster at a time, untagged."""

import pytest
from sbf_fakes.world import spec, three_sites

from sbf_service.access_ports import User, access_ports_of, refuse_shared
from sbf_service.wanted import LiveCluster, wanted
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted


def with_access(*hosts: str) -> Topology:
    """The three sites, with these hosts on access links."""
    document = three_sites().model_dump(mode="json")
    for link in document["links"]:
        link["access"] = link["a"].partition(":")[0] in hosts
    return Topology.model_validate(document)


def user(key: str, *hosts: str, network: str | None = None) -> User:
    return User(key, spec(*hosts), network or key)


def test_a_switch_is_told_which_of_its_ports_are_access_ports() -> None:
    cluster = LiveCluster("a", ClusterKey("a"), spec("brno-h1", "brno-h2"), {Name("brno"): VlanId(100)})
    assert wanted(Name("brno-sw1"), with_access("brno-h2"), [cluster]) == SwitchWanted(
        ports={
            PortName("p1"): VlanSet([100]),
            PortName("p2"): VlanSet([100]),
            PortName("uplink"): VlanSet(),
        },
        access=(PortName("p2"),),
    )


def test_a_host_is_told_that_its_segment_is_untagged() -> None:
    cluster = LiveCluster("a", ClusterKey("a"), spec("brno-h1", "brno-h2"), {Name("brno"): VlanId(100)})
    hosts = (wanted(Name(host), with_access("brno-h2"), [cluster]) for host in ("brno-h1", "brno-h2"))
    assert [segment.untagged for host in hosts for segment in host.segments] == [False, True]


def test_the_access_ports_of_a_cluster_are_the_switchs_on_its_way() -> None:
    assert access_ports_of(with_access("brno-h2", "praha-h1"), user("a", "brno-h1", "brno-h2")) == {"brno-sw1:p2"}


def test_a_second_cluster_is_told_the_port_and_who_has_it() -> None:
    with pytest.raises(Conflict) as caught:
        refuse_shared(with_access("brno-h2"), [user("first", "brno-h2"), user("second", "brno-h1", "brno-h2")])
    assert str(caught.value) == (
        "cluster second needs access port brno-sw1:p2, which carries one cluster at a time and has first: "
        "end that one first, or choose a host on a trunk"
    )


def test_clusters_share_a_trunk() -> None:
    refuse_shared(with_access("brno-h2"), [user("first", "brno-h1", "brno-h2"), user("second", "brno-h1")])


def test_a_cluster_whose_way_is_gone_keeps_nobody_from_anything() -> None:
    refuse_shared(with_access("brno-h2"), [user("gone", "ostrava-h1"), user("second", "brno-h2")])


def test_clusters_of_one_network_share_an_access_port() -> None:
    refuse_shared(with_access("brno-h2"), [user("own", "brno-h2", network="n"), user("member", "brno-h2", network="n")])
