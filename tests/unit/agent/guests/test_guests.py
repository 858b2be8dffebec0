"""Tests of starting, reading and stopping guests. A fake hypervisor stores the domains of the guests in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.fake_machine import FakeGroups, FakeHypervisor, FakeKernel, FakeRoots, FakeUplinkRecords
from support.hosts.seed_documents import seeded_guest, seeded_segment

from virtcloud.agent.difference import compute_difference, digest
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.domains import DomainOwnership, GuestDomain
from virtcloud.agent.guests.guest_files import WANTED_LIMIT
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedGuest, ObservedHost
from virtcloud.agent.steps import BuildSegment, RemoveSegment, StartGuest, Step, StepPending, StopGuests, WritePeerFiles
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment

Make = Callable[..., Segment]


MakeGuest = Callable[..., GuestWanted]


def test_a_guest_is_started_and_read_back(guests: LocalGuests, make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    assert guests.read()[0] == (ObservedGuest("a", "g1", digest(segment, segment.guests[0])),)


def test_a_container_that_exceeds_the_hosts_limits_is_refused(
    guests: LocalGuests, make_segment: Make, make_guest: MakeGuest
) -> None:
    message = "guest g1: .*wants up to 100000 processes, but this host permits 8192"
    with pytest.raises(Refused, match=message):
        guests.ensure_guest(make_segment("a", 100), make_guest(limits={"pids": 100_000}))
    assert guests.read()[0] == ()


def test_a_guest_does_not_start_while_its_root_is_cloned(guests: LocalGuests, make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    guests.ensure_no_guests("a", ("g1",), ("g1",))
    with guests.root_reservations.for_reading("vc-a-g1", "g1"):
        with pytest.raises(StepPending, match="guest g1 starts when it has been cloned"):
            guests.ensure_guest(segment, segment.guests[0])
        with pytest.raises(Refused, match="guest g1 is being cloned"):
            guests.root_reservations.for_reading("vc-a-g1", "g1").__enter__()
    guests.ensure_guest(segment, segment.guests[0])
    assert [guest.running for guest in guests.read()[0]] == [True]


def test_a_running_guest_is_not_started_again(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    guests.ensure_guest(segment, segment.guests[0])
    assert len(hypervisor.started) == 1


def test_a_guest_with_an_old_digest_is_replaced(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make, make_guest: MakeGuest
) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    guests.ensure_guest(segment, make_guest(memory_mb=128))
    assert (len(hypervisor.started), len(hypervisor.by_name)) == (2, 1)


def test_two_clusters_can_have_guests_of_the_same_name(guests: LocalGuests, make_segment: Make) -> None:
    for segment in (make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))):
        guests.ensure_guest(segment, segment.guests[0])
    assert [(guest.cluster, guest.guest) for guest in guests.read()[0]] == [("a", "g1"), ("b", "g1")]


def test_stopping_a_clusters_guests_does_not_affect_others(guests: LocalGuests, make_segment: Make) -> None:
    for segment in (make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))):
        guests.ensure_guest(segment, segment.guests[0])
    guests.ensure_no_guests("a", ("g1",))
    assert [(guest.cluster, guest.guest) for guest in guests.read()[0]] == [("b", "g1")]


def test_a_guest_that_shuts_down_immediately_needs_no_wait(
    guests: LocalGuests, make_segment: Make, pauses: list[float]
) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    guests.ensure_no_guests("a", ("g1",))
    assert pauses == []


def test_a_guest_is_destroyed_after_the_grace_period(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make, pauses: list[float]
) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    hypervisor.stubborn.add("vc-a-g1")
    guests.ensure_no_guests("a", ("g1",))
    assert (len(pauses), hypervisor.destroyed) == (3, ["vc-a-g1"])


def test_a_guest_that_cannot_be_destroyed_delays_no_other(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    segment = make_segment("a", 100, ("g1", "g2"))
    for guest in segment.guests:
        guests.ensure_guest(segment, guest)
    hypervisor.stubborn, hypervisor.immortal = {"vc-a-g1", "vc-a-g2"}, {"vc-a-g1"}
    with pytest.raises(Refused, match="Device or resource busy"):
        guests.ensure_no_guests("a", ("g1", "g2"))
    assert list(hypervisor.by_name) == ["vc-a-g1"]


@pytest.mark.parametrize("call", ["shut_down", "find_domain", "destroy"])
def test_a_hypervisor_that_hangs_delays_no_other(
    images: Path, hypervisor: FakeHypervisor, pauses: list[float], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Of two hypervisors, one stops answering after it has listed its domains."""
    hanging = FakeHypervisor()
    settings = GuestSettings(images, images / "logs", "x86_64", stop_grace_s=0.3)
    guests = LocalGuests({Hypervisor.QEMU: hanging, Hypervisor.LXC: hypervisor}, settings, pauses.append)
    for one, guest in ((hanging, "g1"), (hypervisor, "g2")):
        owner = DomainOwnership("a", guest, "")
        one.by_name[f"vc-a-{guest}"] = GuestDomain(f"vc-a-{guest}", running=True, owner=owner)
    hypervisor.stubborn.add("vc-a-g2")

    def hang(*_: object, **_options: object) -> None:
        hanging.error = Unreachable("libvirt did not answer")
        raise hanging.error

    monkeypatch.setattr(hanging, call, hang)
    with pytest.raises(Unreachable):
        guests.ensure_no_guests("a", ("g1", "g2"))
    assert list(hypervisor.by_name) == []


@pytest.mark.parametrize(("target", "destroyed"), [("/lib/systemd/systemd", []), ("../bin/busybox", ["vc-c1-n1"])])
def test_a_container_with_systemd_gets_the_signal_of_systemd(
    guests: LocalGuests, hypervisor: FakeHypervisor, images: Path, target: str, destroyed: list[str]
) -> None:
    segment = seeded_segment(seeded_guest(seed=None))
    guests.ensure_guest(segment, segment.guests[0])
    (images / "logs/vc-c1-n1/root/sbin").mkdir()
    (images / "logs/vc-c1-n1/root/sbin/init").symlink_to(target)
    hypervisor.with_systemd.add("vc-c1-n1")
    guests.ensure_no_guests("c1", ("n1",))
    assert hypervisor.destroyed == destroyed


def test_a_started_container_is_limited_although_its_hypervisor_fails(
    images: Path, hypervisor: FakeHypervisor, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = FakeGroups()
    settings = GuestSettings(images, images / "logs", "x86_64", pids=100)
    guests = LocalGuests(
        {Hypervisor.LXC: hypervisor}, settings, lambda _: None, FakeRoots(images / "logs"), groups=groups
    )
    segment = make_segment("a", 100, ("g1",))

    def start_and_fail(_xml: str) -> None:
        hypervisor.error = Unreachable("libvirt did not answer")

    monkeypatch.setattr(hypervisor, "start", start_and_fail)
    with pytest.raises(Unreachable):
        guests.ensure_guest(segment, segment.guests[0])
    assert groups.limited == ["vc-a-g1 100"]


def test_a_container_that_starts_too_late_is_limited_later(
    images: Path, hypervisor: FakeHypervisor, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container starts after the deadline of the call. The next reading of the guests sets the limits."""
    groups = FakeGroups()
    settings = GuestSettings(images, images / "logs", "x86_64", pids=100)
    guests = LocalGuests(
        {Hypervisor.LXC: hypervisor}, settings, lambda _: None, FakeRoots(images / "logs"), groups=groups
    )
    segment, start = make_segment("a", 100, ("g1",)), hypervisor.start

    def start_late(xml: str) -> None:
        start(xml)
        raise Unreachable("libvirt did not answer in time")

    monkeypatch.setattr(hypervisor, "start", start_late)
    with pytest.raises(Unreachable):
        guests.ensure_guest(segment, segment.guests[0])
    for _ in range(2):
        guests.read()
    assert groups.limited == ["vc-a-g1 100"]


def test_a_container_that_rebooted_itself_is_limited_again(
    images: Path, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """At a reboot, libvirt starts the same domain again, in a new scope of systemd. A new agent reads the record."""
    groups, roots = FakeGroups(), FakeRoots(images / "logs")
    settings, hypervisors = GuestSettings(images, images / "logs", "x86_64", pids=100), {Hypervisor.LXC: hypervisor}
    segment = make_segment("a", 100, ("g1",))
    LocalGuests(hypervisors, settings, lambda _: None, roots, groups=groups).ensure_guest(segment, segment.guests[0])
    restarted = LocalGuests(hypervisors, settings, lambda _: None, roots, groups=groups)
    restarted.read()
    assert groups.limited == ["vc-a-g1 100"]
    groups.start = "202 9000"
    for _ in range(2):
        restarted.read()
    assert groups.limited == ["vc-a-g1 100", "vc-a-g1 100"]


def test_guests_are_read_despite_a_damaged_file_of_limits(
    guests: LocalGuests, images: Path, make_segment: Make
) -> None:
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    (images / "logs/vc-a-g1" / WANTED_LIMIT).touch()
    assert [guest.guest for guest in guests.read()[0]] == ["g1"]


def test_stopping_absent_guests_succeeds(guests: LocalGuests) -> None:
    guests.ensure_no_guests("a", ("g1", "g2"))
    assert guests.read() == ((), ())


def test_a_foreign_domain_with_the_guests_name_stays_unchanged(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    hypervisor.by_name["vc-a-g1"] = GuestDomain("vc-a-g1", running=True)
    segment = make_segment("a", 100, ("g1",))
    with pytest.raises(Unsafe, match="domain vc-a-g1 exists and was not created by virtcloud"):
        guests.ensure_guest(segment, segment.guests[0])
    assert (hypervisor.started, list(hypervisor.by_name)) == ([], ["vc-a-g1"])


def test_an_administrators_copy_of_a_guest_stays_unchanged(
    guests: LocalGuests, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """virt-clone also copies the metadata of a domain."""
    segment = make_segment("a", 100, ("g1",))
    guests.ensure_guest(segment, segment.guests[0])
    hypervisor.by_name["copy"] = replace(hypervisor.by_name["vc-a-g1"], name="copy")
    observed, _ = guests.read()
    assert [(guest.cluster, guest.guest) for guest in observed] == [("a", "g1")]
    guests.ensure_no_guests("a", ("g1",))
    assert list(hypervisor.by_name) == ["copy"]


def test_foreign_domains_are_not_read(guests: LocalGuests, hypervisor: FakeHypervisor) -> None:
    hypervisor.by_name["database"] = GuestDomain("database", running=True)
    assert guests.read()[0] == ()


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_guest_and_its_port_have_the_clusters_mtu(
    guests: LocalGuests, kernel: FakeKernel, hypervisor: FakeHypervisor, make_segment: Make, interrupted: bool
) -> None:
    """If an agent is killed after it starts the guest, the next agent corrects the MTU of the guest's port."""
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"mtu": 1450})
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests)
    host.apply(BuildSegment(segment))
    kernel.put(name=names.guest_port_name("a", "g1", 100), kind="veth")
    if interrupted:
        guests.ensure_guest(segment, segment.guests[0])
    faults = ("the guest's port has MTU 1500, expected 1450",)
    host.apply(BuildSegment(segment, faults) if interrupted else StartGuest(segment, segment.guests[0]))
    assert kernel.interface(names.guest_port_name("a", "g1", 100)).mtu == 1450
    assert hypervisor.mtus == {"vc-a-g1": 1450}


def with_ports(kernel: FakeKernel, segment: Segment) -> list[str]:
    ports = [names.guest_port_name(segment.id, guest.name, segment.vlan) for guest in segment.guests]
    for port in ports:
        kernel.put(name=port, kind="veth")
    return ports


def test_a_container_that_refuses_its_mtu_is_started(
    guests: LocalGuests,
    kernel: FakeKernel,
    hypervisor: FakeHypervisor,
    make_segment: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first program of a container can end at once. Then the container has no interface."""
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"mtu": 1450})
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests)
    host.apply(BuildSegment(segment))
    (port,) = with_ports(kernel, segment)
    hypervisor.without_eth0 = {"vc-a-g1"}
    host.apply(StartGuest(segment, segment.guests[0]))
    assert kernel.interface(port).mtu == 1450
    assert "mtu_not_set domain=vc-a-g1 error=" in caplog.text


def test_a_container_that_refuses_its_mtu_delays_no_other(
    guests: LocalGuests, kernel: FakeKernel, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    """The root user of a container can rename or delete the container's interface, and reboot the container."""
    segment = make_segment("a", 100, ("g1", "g2")).model_copy(update={"mtu": 1450})
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests)
    host.apply(BuildSegment(segment))
    for guest in segment.guests:
        host.apply(StartGuest(segment, guest))
    ports = with_ports(kernel, segment)
    hypervisor.mtus, hypervisor.without_eth0 = {}, {"vc-a-g1"}
    host.apply(BuildSegment(segment, ("the guests' ports have MTU 1500, expected 1450",)))
    assert (hypervisor.mtus, [kernel.interface(port).mtu for port in ports]) == ({"vc-a-g2": 1450}, [1450, 1450])


def test_a_container_reads_peers_in_a_read_only_folder(
    guests: LocalGuests, hypervisor: FakeHypervisor, images: Path
) -> None:
    segment = seeded_segment(seeded_guest())
    guests.ensure_guest(segment, segment.guests[0])
    folder = images / "logs" / names.domain_name("c1", "n1")
    domain = ET.fromstring(hypervisor.started[-1])  # noqa: S314 - written by the agent
    (shared,) = (element for element in domain.iter("filesystem") if element.find("readonly") is not None)
    source, target = (child.get("dir") for name in ("source", "target") for child in shared.iter(name))
    assert (source, target) == (str(folder / "peers"), "/etc/virtcloud")
    assert "10.0.0.9 n1.4711.pbs.internal" in (folder / "peers/hosts").read_text()


def test_changed_peer_files_are_observed_and_replaced(guests: LocalGuests, images: Path) -> None:
    segment = seeded_segment(seeded_guest())
    guests.ensure_guest(segment, segment.guests[0])
    assert compute_difference(HostWanted(segments=(segment,)), ObservedHost((), guests.read()[0]))[1:] == []
    (images / "logs" / names.domain_name("c1", "n1") / "peers/hosts").unlink()
    (step,) = compute_difference(HostWanted(segments=(segment,)), ObservedHost((), guests.read()[0]))[1:]
    assert isinstance(step, WritePeerFiles)
    guests.write_peer_files(step.segment, step.guest)
    assert compute_difference(HostWanted(segments=(segment,)), ObservedHost((), guests.read()[0]))[1:] == []


def test_a_machine_has_no_peer_files_of_its_former_container(images: Path, hypervisor: FakeHypervisor) -> None:
    settings = GuestSettings(images, images / "logs", "x86_64", stop_grace_s=0)
    hypervisors = {Hypervisor.LXC: hypervisor, Hypervisor.QEMU: FakeHypervisor()}
    guests = LocalGuests(hypervisors, settings, lambda _: None, FakeRoots(images / "logs"), groups=FakeGroups())
    container = seeded_segment(seeded_guest())
    guests.ensure_guest(container, container.guests[0])
    machine = seeded_segment(seeded_guest(image="cloud"), peers=container.peers[:1])
    guests.ensure_guest(machine, machine.guests[0])
    assert compute_difference(HostWanted(segments=(machine,)), ObservedHost((), guests.read()[0]))[1:] == []


def count_readings(kernel: FakeKernel, host: LocalHost, *steps: Step) -> int:
    host.read()
    readings: list[int] = []
    list_interfaces = kernel.list_interfaces
    kernel.list_interfaces = lambda: readings.append(1) or list_interfaces()
    for step in steps:
        host.apply(step)
    return len(readings)


def test_building_segments_does_not_read_the_interfaces_again(
    guests: LocalGuests, kernel: FakeKernel, make_segment: Make
) -> None:
    """On a host with many segments, reading the interfaces takes longer than creating a segment."""
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests)
    assert (
        count_readings(kernel, host, *(BuildSegment(make_segment(f"c{vlan}", vlan)) for vlan in (100, 101, 102))) == 0
    )


@pytest.mark.parametrize("step", [StopGuests("a", ("g1",)), RemoveSegment("a", 100)], ids=str)
def test_interfaces_are_read_again_after_a_removal(
    guests: LocalGuests, kernel: FakeKernel, make_segment: Make, step: Step
) -> None:
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests)
    host.apply(BuildSegment(make_segment("a", 100, ("g1",))))
    removal = count_readings(kernel, host, step)
    assert count_readings(kernel, host, step, BuildSegment(make_segment("b", 101))) > removal
