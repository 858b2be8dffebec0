"""Tests of a path check: the result of each path, and the section of a path in which frames are lost."""

from itertools import permutations

import pytest
from support.sbf_fakes.world import spec, three_edges, three_sites

from sbf_service.domain.path_verification import choose_size, decide_pace, find_route, judge_paths, list_hosts
from sbf_service.domain.paths import ClusterNetwork, LiveCluster
from virtcloud.model.errors import Conflict
from virtcloud.model.path_check import FrameReport, PathResult, PathSection, ReceivedFrames, VerifiedPath
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, VlanId

ALL = {"broadcast": 1, "small": 1, "full": 1}
SMALL = {"broadcast": 1, "small": 1}
HOSTS = ("brno-h1", "brno-h2", "praha-h1")
Lost = dict[tuple[str, str], dict[str, int]]


def live(*hosts: str, transport: str | None = "core", joined: ClusterNetwork | None = None) -> LiveCluster:
    vlans = {Name(site): VlanId(100) for site in ("brno", "praha", "plzen")}
    chosen = None if transport is None else Name(transport)
    return LiveCluster("c1", ClusterKey("demo"), spec(*hosts), vlans, chosen, joined=joined)


def judge(
    lost: Lost, hosts: tuple[str, ...] = HOSTS, topology: Topology | None = None
) -> dict[tuple[str, str], VerifiedPath]:
    """Return the result of a check for each pair of hosts (source, target).

    Each key of ``lost`` is a pair of hosts between which frames are lost. The value of the key contains, for each kind
    of frame, the number of frames that arrive. For other pairs, all frames arrive.
    """
    names = tuple(map(Name, hosts))
    arrived = dict.fromkeys(permutations(hosts, 2), ALL) | lost
    reports = {
        Name(target): FrameReport(
            received=tuple(
                ReceivedFrames(number=number, **arrived[source, target])
                for number, source in enumerate(hosts)
                if (source, target) in arrived
            )
        )
        for target in hosts
    }
    found = judge_paths(topology or three_sites(), live(*hosts), names, reports)
    return {(path.source, path.target): path for path in found}


@pytest.mark.parametrize(
    ("frames", "result"),
    [
        (ALL, PathResult.PASSES),
        ({}, PathResult.NOTHING_PASSES),
        (SMALL, PathResult.ONLY_SMALL),
        ({"broadcast": 1}, PathResult.ONLY_SMALL),
        ({"small": 1, "full": 1}, PathResult.NO_BROADCAST),
        ({**ALL, "duplicates": 1}, PathResult.DUPLICATES),
    ],
)
def test_the_frames_that_arrived_decide_the_result(frames: dict[str, int], result: PathResult) -> None:
    found = judge({("brno-h1", "brno-h2"): frames})
    assert {pair: path.result for pair, path in found.items() if path.result is not PathResult.PASSES} == (
        {} if result is PathResult.PASSES else {("brno-h1", "brno-h2"): result}
    )


def test_a_host_that_receives_its_own_frames_has_a_loop() -> None:
    path = judge({("brno-h1", "brno-h1"): {"broadcast": 1}})["brno-h1", "brno-h1"]
    assert path.result is PathResult.DUPLICATES


def test_a_host_without_a_report_has_no_paths() -> None:
    reports = {Name("brno-h1"): FrameReport(received=(ReceivedFrames(number=1, **ALL),))}
    assert judge_paths(three_sites(), live(*HOSTS), tuple(map(Name, HOSTS)), reports) == ()


def test_a_route_lists_ports_in_the_frames_order() -> None:
    route = find_route(three_sites(), live(*HOSTS), Name("praha-h1"), Name("brno-h2"))
    assert route == (
        "praha-h1:eth0",
        "praha-sw1:p1",
        "praha-sw1:uplink",
        "brno-sw1:uplink",
        "brno-sw1:p2",
        "brno-h2:eth0",
    )


def test_a_route_within_a_site_stays_there() -> None:
    route = find_route(three_sites(), live(*HOSTS), Name("brno-h1"), Name("brno-h2"))
    assert route == ("brno-h1:eth0", "brno-sw1:p1", "brno-sw1:p2", "brno-h2:eth0")


def test_a_route_passes_provider_edges() -> None:
    route = find_route(three_edges(), live("brno-h1", "praha-h1", transport="evpn"), Name("brno-h1"), Name("praha-h1"))
    assert route[3:5] == ("brno-pe1:ac", "praha-pe1:ac")


def test_a_removed_host_has_no_route() -> None:
    assert find_route(three_sites(), live("gone"), Name("gone"), Name("brno-h1")) == ()


def test_the_section_lies_between_ports_that_other_paths_use() -> None:
    """Frames of full size from Brno do not reach Praha. On other paths, such as Praha to Brno, all frames arrive."""
    lost = {("brno-h1", "praha-h1"): SMALL, ("brno-h2", "praha-h1"): SMALL}
    assert judge(lost)["brno-h1", "praha-h1"].section == PathSection(
        after="brno-sw1:p1",
        ports=("brno-sw1:uplink", "praha-sw1:uplink", "praha-sw1:p1", "praha-h1:eth0"),
    )


def test_a_second_host_narrows_the_section() -> None:
    hosts = (*HOSTS, "praha-h2", "plzen-h1")
    lost = {(source, target): SMALL for source in hosts[:2] for target in hosts[2:]}
    assert judge(lost, hosts)["brno-h1", "praha-h1"].section == PathSection(
        after="brno-sw1:p1", before="praha-sw1:uplink", ports=("brno-sw1:uplink",)
    )


def test_a_lost_vlan_at_a_hosts_port_is_located() -> None:
    lost: Lost = {pair: {} for pair in permutations(HOSTS, 2) if "brno-h1" in pair}
    assert judge(lost)["brno-h2", "brno-h1"].section == PathSection(
        after="brno-sw1:p2", ports=("brno-sw1:p1", "brno-h1:eth0")
    )


def test_without_another_path_the_section_is_the_whole_path() -> None:
    section = judge({("brno-h1", "brno-h2"): {}, ("brno-h2", "brno-h1"): {}}, HOSTS[:2])["brno-h1", "brno-h2"].section
    assert section is not None
    assert (section.after, section.before, len(section.ports)) == (None, None, 4)


def test_a_member_needs_paths_to_the_hosts_of_its_network() -> None:
    joined = ClusterNetwork("c0", ClusterKey("net"), spec("brno-h1", "praha-h1"))
    assert list_hosts(live("plzen-h1", "brno-h1", joined=joined)) == ("brno-h1", "plzen-h1", "praha-h1")


def test_a_cluster_with_too_many_hosts_is_refused() -> None:
    with pytest.raises(Conflict, match="has 129 hosts: expected at most 128"):
        list_hosts(live(*(f"h{number}" for number in range(129))))


def test_full_packets_have_the_clusters_mtu() -> None:
    assert (choose_size(1450, [1500, 9000]), choose_size(None, [1500, 9000])) == (1450, 1500)


def test_many_hosts_send_more_slowly() -> None:
    assert (decide_pace(3, 1500).round_s, decide_pace(100, 946).round_s) == (0.25, 0.9999)
