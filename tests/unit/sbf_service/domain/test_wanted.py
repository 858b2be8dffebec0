from dataclasses import replace
from typing import Any

from support.sbf_fakes.world import spec, three_sites

from sbf_service.domain.paths import LiveCluster, list_elements
from sbf_service.domain.wanted import compute_wanted, derive_mac
from virtcloud.model.guest_spec import DiskName, GuestDisk
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.values import ClusterKey, Mac, Name, PortRef, VlanId


def live(key: str, number: int, *hosts: str, **changes: Any) -> LiveCluster:
    sites = {host.split("-")[0] for host in hosts}
    return LiveCluster(f"id-{key}", ClusterKey(key), spec(*hosts, **changes), {Name(s): VlanId(number) for s in sites})


def ports(element: str, *clusters: LiveCluster) -> dict[str, str]:
    found = compute_wanted(Name(element), three_sites(), clusters)
    assert isinstance(found, SwitchWanted)
    return {port: str(vlans) for port, vlans in found.ports.items()}


def test_managed_ports_without_vlans_have_an_empty_set() -> None:
    assert ports("brno-sw1") == {"p1": "", "p2": "", "uplink": ""}


def test_each_port_carries_the_clusters_on_its_path() -> None:
    clusters = live("a", 100, "brno-h1", "praha-h1"), live("b", 101, "brno-h1", "brno-h2"), live("c", 102, "praha-h1")
    assert ports("brno-sw1", *clusters) == {"p1": "100-101", "p2": "101", "uplink": "100"}
    assert ports("praha-sw1", *clusters) == {"p1": "100,102", "p2": "", "uplink": "100"}
    assert ports("plzen-sw1", *clusters) == {"p1": "", "p2": "", "uplink": ""}


def test_a_host_runs_each_clusters_guests_on_its_uplink() -> None:
    found = compute_wanted(
        Name("brno-h1"), three_sites(), [live("b", 101, "brno-h1"), live("a", 100, "brno-h1", "praha-h1")]
    )
    assert [(one.key, one.vlan, one.port, [guest.name for guest in one.guests]) for one in found.segments] == [
        ("a", 100, "eth0", ["g1"]),
        ("b", 101, "eth0", ["g1"]),
    ]


def test_a_host_without_guests_has_a_segment() -> None:
    found = compute_wanted(Name("brno-h2"), three_sites(), [live("a", 100, "brno-h1", hosts=["brno-h2"])])
    assert [(one.vlan, one.guests) for one in found.segments] == [(100, ())]


def test_a_derived_mac_is_local_unicast_and_stable() -> None:
    assert derive_mac("c1", Name("g1")) == "6e:d5:5b:23:b6:db"
    assert int(derive_mac("c1", Name("g1"))[:2], 16) & 0b11 == 0b10


def test_derived_macs_differ_between_clusters_and_guests() -> None:
    assert len({derive_mac(cluster, Name(guest)) for cluster in ("c1", "c2") for guest in ("g1", "g2")}) == 4


def test_a_requested_mac_is_used() -> None:
    guest = {"name": "g1", "host": "brno-h1", "image": "debian", "mac": "02:00:00:00:00:07"}
    found = compute_wanted(Name("brno-h1"), three_sites(), [live("a", 100, "brno-h1", guests=[guest])])
    assert found.segments[0].guests[0].mac == Mac("02:00:00:00:00:07")


def test_each_element_with_a_listed_port_is_listed_once() -> None:
    assert list_elements([PortRef("sw1:p1"), PortRef("sw1:p2"), PortRef("h1:eth0")]) == {"sw1", "h1"}


def test_a_host_gets_the_mtu_of_its_clusters_transport() -> None:
    topology = three_sites(transports=[{"name": "core", "kind": "qinq", "s_tag": 2000, "mtu": 1500}])
    over_core = replace(live("a", 100, "brno-h1", "praha-h1"), transport=Name("core"))
    found = compute_wanted(Name("brno-h1"), topology, [over_core, live("b", 101, "brno-h1")])
    assert [(segment.key, segment.mtu) for segment in found.segments] == [("a", 1496), ("b", None)]


def test_an_unknown_mtu_of_a_transport_changes_no_segment() -> None:
    cluster = replace(live("a", 100, "brno-h1", "praha-h1"), transport=Name("core"))
    found = compute_wanted(Name("brno-h1"), three_sites(), [cluster])
    assert [segment.mtu for segment in found.segments] == [None]


def test_a_host_applies_the_limits_of_guests_in_the_spec() -> None:
    cluster = live("a", 100, "brno-h1")
    (guest,) = cluster.spec.guests
    limited = guest.model_copy(
        update={"disk_mb": 64, "pids": 100, "disks": (GuestDisk(name=DiskName("scratch"), size_mb=32),)}
    )
    spec = cluster.spec.model_copy(update={"guests": (limited,)})
    (segment,) = compute_wanted(Name("brno-h1"), three_sites(), [replace(cluster, spec=spec)]).segments
    assert [guest.model_dump(exclude_none=True, include={"limits", "disks"}) for guest in segment.guests] == [
        {"limits": {"disk_mb": 64, "pids": 100}, "disks": ({"name": "scratch", "size_mb": 32},)}
    ]
    assert segment.requires == ("guest-limits",), "an older agent would ignore the limits"


def test_guests_without_limits_have_no_keys_for_limits() -> None:
    (segment,) = compute_wanted(Name("brno-h1"), three_sites(), [live("a", 100, "brno-h1")]).segments
    assert not {"limits", "disks"} & set(segment.guests[0].model_dump(exclude_none=True))
    assert segment.requires == ()
