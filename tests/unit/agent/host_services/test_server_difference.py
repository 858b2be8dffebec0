from collections.abc import Callable
from dataclasses import replace

import pytest

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.host_services.dnsmasq_config import render_dnsmasq
from virtcloud.agent.host_services.metadata_documents import hash_metadata
from virtcloud.agent.host_services.server_difference import (
    ObservedServer,
    ServeGuests,
    StopServing,
    find_port_faults,
)
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.steps import BuildSegment, StartGuest
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


@pytest.fixture
def served(make_segment: Make) -> Segment:
    return make_segment("a", 100, ("g1",)).model_copy(update={"host_services": ("dhcp", "dns")})


def running(segment: Segment) -> ObservedServer:
    files = render_dnsmasq(segment)
    documents = hash_metadata(segment)
    return ObservedServer(segment.id, segment.vlan, files.config_digest, files.names_digest, metadata=documents)


def steps(segment: Segment | None, *servers: ObservedServer) -> list[object]:
    segments = () if segment is None else (segment,)
    observed = tuple(ObservedSegment(one.id, one.vlan, one.port) for one in segments)
    found = compute_difference(HostWanted(segments=segments), ObservedHost(observed, servers=servers))
    return [step for step in found if not isinstance(step, StartGuest)]


def test_a_server_starts_after_its_bridge_and_before_its_guests(served: Segment) -> None:
    assert compute_difference(HostWanted(segments=(served,)), ObservedHost()) == [
        BuildSegment(served),
        ServeGuests(served),
        StartGuest(served, served.guests[0]),
    ]


def test_a_correct_server_needs_no_step(served: Segment) -> None:
    assert steps(served, running(served)) == []


def test_changed_metadata_documents_are_served(served: Segment) -> None:
    served = served.model_copy(update={"host_services": ("dhcp", "metadata")})
    (step,) = steps(served.model_copy(update={"members": {"c2": "other"}}), running(served))
    assert str(step) == "serve DHCP and metadata to 1 guest (other metadata)"
    assert steps(served, running(served)) == []


def test_a_segment_without_guests_or_services_needs_no_server(served: Segment) -> None:
    assert steps(served.model_copy(update={"guests": ()})) == []
    assert steps(served.model_copy(update={"host_services": ()})) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"config": "other"}, "other settings"),
        ({"names": "other"}, "other names"),
        ({"faults": ("dnsmasq has ended",)}, "dnsmasq has ended"),
    ],
)
def test_each_fault_of_a_server_is_corrected(served: Segment, change: dict[str, str], fault: str) -> None:
    assert steps(served, replace(running(served), **change)) == [ServeGuests(served, (fault,))]  # type: ignore[arg-type]


def test_a_server_of_another_vlan_or_cluster_is_removed(served: Segment) -> None:
    assert steps(served, running(served), ObservedServer("a", 99), ObservedServer("z", 100)) == [
        StopServing("a", 99),
        StopServing("z", 100),
    ]
    assert steps(None, running(served)) == [StopServing("a", 100)]


def test_files_of_a_server_are_removed_if_none_is_wanted(served: Segment) -> None:
    remains = ObservedServer("a", None)
    assert steps(None, remains) == [StopServing("a", None)]
    assert str(StopServing("a", None)) == "remove the files of a server for guests"
    assert steps(served, remains) == [ServeGuests(served)]


BRIDGE = KernelInterface(1, "br100", kind="bridge", alias="virtcloud:a")
UPLINK = KernelInterface(2, "eth0.100", alias="virtcloud:a", master=1, isolated=True)
UNTAGGED = KernelInterface(2, "eth0", master=1)
PORT = KernelInterface(3, "vs100", alias="virtcloud:a", master=1, up=True, isolated=True)


@pytest.mark.parametrize(
    ("interfaces", "faults"),
    [
        ((BRIDGE, UPLINK, PORT, KernelInterface(4, "vc100-01234567", master=1)), []),
        ((BRIDGE, UPLINK), ["vs100 is missing"]),
        ((BRIDGE, UPLINK, replace(PORT, alias="virtcloud:b")), ["vs100 is missing"]),
        ((BRIDGE, UPLINK, replace(PORT, master=None)), ["vs100 is not on br100"]),
        ((BRIDGE, UPLINK, replace(PORT, up=False)), ["vs100 is down"]),
        ((BRIDGE, UPLINK, replace(PORT, isolated=False)), ["vs100 is not isolated"]),
        ((BRIDGE, replace(UPLINK, isolated=False), PORT), ["eth0.100 is not isolated"]),
        ((replace(BRIDGE, alias="virtcloud:a@eth0"), UNTAGGED, PORT), ["eth0 is not isolated"]),
        ((BRIDGE, UPLINK, PORT, KernelInterface(4, "foreign0", master=1)), []),
    ],
)
def test_each_fault_of_a_servers_port_is_found(interfaces: tuple[KernelInterface, ...], faults: list[str]) -> None:
    assert list(find_port_faults("a", 100, interfaces)) == faults
