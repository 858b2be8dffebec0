"""Tests of an agent whose hypervisor does not answer. The agent reconciles segments, but confirms no revision."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fake_machine import FakeElementApi, FakeGroups, FakeHypervisor, FakeKernel, FakeRoots, FakeUplinkRecords
from support.hosts.container_images import write_container_image

from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filter_rules import SetElement
from virtcloud.agent.network.guest_filters import FilteredPort, list_elements
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]
NO_ANSWER = Unreachable("libvirt (lxc:///system) did not list domains within 15 s")


@pytest.fixture
def service() -> FakeElementApi:
    return FakeElementApi()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_container_image(tmp_path)
    return tmp_path


@pytest.fixture
def reconciler(service: FakeElementApi, kernel: FakeKernel, hypervisor: FakeHypervisor, images: Path) -> HostReconciler:
    return make_reconciler(service, kernel, images, {Hypervisor.LXC: hypervisor})


def make_reconciler(
    service: FakeElementApi,
    kernel: FakeKernel,
    images: Path,
    hypervisors: dict[Hypervisor, FakeHypervisor],
    filters: NftablesFilters | None = None,
) -> HostReconciler:
    settings = GuestSettings(images, images / "state", "x86_64", stop_grace_s=0)
    guests = LocalGuests(hypervisors, settings, lambda _: None, FakeRoots(settings.folders), groups=FakeGroups())
    host = LocalHost(SegmentInterfaces(kernel, FakeUplinkRecords()), guests, filters)
    return HostReconciler("h1", service, host, StopSignal(), ReconcileTiming(retry_first_s=0))


def test_a_vlan_is_removed_while_the_hypervisor_is_unreachable(
    reconciler: HostReconciler,
    service: FakeElementApi,
    kernel: FakeKernel,
    hypervisor: FakeHypervisor,
    make_segment: Make,
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    hypervisor.error = NO_ANSWER
    service.want()
    reconciler.reconcile_once()
    assert kernel.names == {"eth0"}
    assert service.reports == [("confirmed", 1), ("error", 2)], (
        "expected no confirmation, because a guest may still run"
    )
    assert service.messages == [str(NO_ANSWER)]


def test_a_hypervisor_that_cannot_list_domains_blocks_no_other(
    service: FakeElementApi, kernel: FakeKernel, hypervisor: FakeHypervisor, images: Path, make_segment: Make
) -> None:
    """If libvirt cannot read one domain, libvirt answers a request for the list of domains with an error."""
    damaged = FakeHypervisor()
    damaged.error = Refused("libvirt (qemu:///system) could not list domains: internal error")
    hypervisors = {Hypervisor.LXC: hypervisor, Hypervisor.QEMU: damaged}
    service.want(make_segment("a", 100, ("g1",)))
    make_reconciler(service, kernel, images, hypervisors).reconcile_once()
    assert list(hypervisor.by_name) == ["vc-a-g1"]
    assert service.messages == [str(damaged.error)]


def test_a_removal_is_confirmed_when_the_hypervisor_answers_again(
    reconciler: HostReconciler, service: FakeElementApi, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    hypervisor.error = NO_ANSWER
    service.want()
    reconciler.reconcile_once()
    hypervisor.error = None
    reconciler.reconcile_once()
    assert (hypervisor.by_name, service.reports[-1]) == ({}, ("confirmed", 2))


def test_a_vlan_is_removed_although_its_guest_cannot_be_stopped(
    reconciler: HostReconciler,
    service: FakeElementApi,
    kernel: FakeKernel,
    hypervisor: FakeHypervisor,
    make_segment: Make,
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    hypervisor.stubborn, hypervisor.immortal = {"vc-a-g1"}, {"vc-a-g1"}
    service.want()
    reconciler.reconcile_once()
    assert (kernel.names, service.reports[-1]) == ({"eth0"}, ("confirmed", 2))
    assert service.remaining[-1] == {"a": "could not stop g1: Device or resource busy"}


def test_files_stay_while_their_guest_may_run(
    reconciler: HostReconciler, service: FakeElementApi, hypervisor: FakeHypervisor, images: Path, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    service.want()
    found = []
    for error, immortal in ((NO_ANSWER, True), (None, True), (None, False)):
        hypervisor.error, hypervisor.stubborn = error, {"vc-a-g1"}
        hypervisor.immortal = {"vc-a-g1"} if immortal else set()
        reconciler.reconcile_once()
        found.append((images / "state/vc-a-g1").exists())
    assert found == [True, True, False]


def test_a_vlan_built_without_hypervisor_is_not_confirmed(
    reconciler: HostReconciler,
    service: FakeElementApi,
    kernel: FakeKernel,
    hypervisor: FakeHypervisor,
    make_segment: Make,
) -> None:
    hypervisor.error = NO_ANSWER
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    assert (kernel.names, service.reports) == ({"eth0", "eth0.100", "br100"}, [("error", 1)])


def test_an_unreachable_hypervisor_is_not_reported_as_drift(
    reconciler: HostReconciler, service: FakeElementApi, hypervisor: FakeHypervisor, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    hypervisor.error = NO_ANSWER
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("error", 1)]


def test_no_confirmation_when_the_hypervisor_fails_during_read_back(
    reconciler: HostReconciler,
    service: FakeElementApi,
    kernel: FakeKernel,
    hypervisor: FakeHypervisor,
    make_segment: Make,
) -> None:
    add_vlan = kernel.add_vlan

    def add_and_lose_hypervisor(name: str, parent: KernelInterface, vlan: int) -> int:
        hypervisor.error = NO_ANSWER
        return add_vlan(name, parent, vlan)

    kernel.add_vlan = add_and_lose_hypervisor
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    assert service.reports == [("error", 1)]


def test_an_unreachable_hypervisor_does_not_block_the_other(
    service: FakeElementApi, kernel: FakeKernel, hypervisor: FakeHypervisor, images: Path, make_segment: Make
) -> None:
    unreachable = FakeHypervisor()
    unreachable.error = NO_ANSWER
    both = {Hypervisor.QEMU: unreachable, Hypervisor.LXC: hypervisor}
    service.want(make_segment("a", 100, ("g1",)))
    make_reconciler(service, kernel, images, both).reconcile_once()
    assert (list(hypervisor.by_name), service.reports) == (["vc-a-g1"], [("error", 1)])


def test_stopping_guests_of_an_unreachable_hypervisor_fails(hypervisor: FakeHypervisor, images: Path) -> None:
    hypervisor.error = NO_ANSWER
    settings = GuestSettings(images, images / "state", "x86_64")
    with pytest.raises(Unreachable):
        LocalGuests({Hypervisor.LXC: hypervisor}, settings, lambda _: None).ensure_no_guests("a", ("g1",))


class RecordedFilters(NftablesFilters):
    """Filters in memory."""

    def __init__(self) -> None:
        self.elements = frozenset[SetElement]()

    def read(self) -> ObservedFilters:
        return ObservedFilters(self.elements)

    def replace(self, ports: tuple[FilteredPort, ...]) -> None:
        self.elements = list_elements(ports)


def test_a_former_guest_loses_its_port_with_its_filters(
    service: FakeElementApi, kernel: FakeKernel, hypervisor: FakeHypervisor, images: Path, make_segment: Make
) -> None:
    filters, port = RecordedFilters(), names.guest_port_name("a", "g1", 100)
    reconciler = make_reconciler(service, kernel, images, {Hypervisor.LXC: hypervisor}, filters)
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    kernel.put(name=port, master=kernel.interface("br100").index)
    hypervisor.error = NO_ANSWER
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    assert (filters.elements, port in kernel.names, "br100" in kernel.names) == (frozenset(), False, True)


def test_a_malformed_image_is_refused_after_three_attempts(
    reconciler: HostReconciler, service: FakeElementApi, images: Path, make_segment: Make
) -> None:
    (images / "busybox/image.yaml").write_text("kind: qcow2\n")
    service.want(make_segment("a", 100, ("g1",)))
    reports = []
    for _ in range(3):
        reconciler.reconcile_once()
        reports.append(len(service.refused))
    path = images / "busybox/image.yaml"
    message = f"{path}:1: kind: expected 'lxc' or 'qemu', got 'qcow2'; correct {path}"
    refusal = f"could not start g1: image busybox: its description is malformed: {message}"
    assert (reports, service.refused) == ([0, 0, 1], [{"a": refusal}])


@contextmanager
def libvirtd(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    program = shutil.which("libvirtd", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("NOT TESTED: libvirtd is not installed")
    config = folder / "libvirtd.conf"
    config.write_text(f'unix_sock_dir = "{folder}"\nauth_unix_rw = "none"\nauth_unix_ro = "none"\nmdns_adv = 0\n')
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "LIBVIRT_DRIVER_DIR": str(folder)}
    argv = [program, "--config", str(config), "--pid-file", str(folder / "pid")]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            _wait_for_socket(folder / "libvirt-sock")
            yield f"test+unix:///default?socket={folder}/libvirt-sock", process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def _wait_for_socket(path: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                time.sleep(0.05)
                continue
            return
    pytest.fail("libvirtd did not listen")


def test_a_hanging_libvirtd_blocks_no_call_and_is_used_again(tmp_path: Path) -> None:
    hypervisor_module = pytest.importorskip("virtcloud.agent.guests.hypervisor")
    with libvirtd(tmp_path) as (uri, process):
        hypervisor = hypervisor_module.LibvirtHypervisor(
            uri, hypervisor_module.LibvirtDeadlines(read_s=1, change_s=1, close_s=0.5)
        )
        assert _list_domains_with_retry(hypervisor) == ["test"]
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(Unreachable, match="did not list domains within 1 s; if libvirtd hangs"):
            hypervisor.list_domains()
        with pytest.raises(Unreachable, match="the call 'list domains' of"):
            hypervisor.list_domains()
        hypervisor.close()
        assert time.monotonic() - began < 10
        process.send_signal(signal.SIGCONT)
        assert _list_domains_with_retry(hypervisor) == ["test"]
        hypervisor.close()


def test_a_killed_hanging_libvirtd_is_unreachable(tmp_path: Path) -> None:
    hypervisor_module = pytest.importorskip("virtcloud.agent.guests.hypervisor")
    with libvirtd(tmp_path) as (uri, process):
        hypervisor = hypervisor_module.LibvirtHypervisor(
            uri, hypervisor_module.LibvirtDeadlines(read_s=1, change_s=1, close_s=0.5)
        )
        assert _list_domains_with_retry(hypervisor) == ["test"]
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unreachable):
            hypervisor.list_domains()
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        message = ""
        while "check libvirtd" not in message and time.monotonic() < deadline:
            with pytest.raises(Unreachable) as raised:
                hypervisor.list_domains()
            message = str(raised.value)
        assert "check libvirtd" in message


def _list_domains_with_retry(hypervisor: object) -> list[str]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return [domain.name for domain in hypervisor.list_domains()]  # type: ignore[attr-defined]
        except Unreachable:
            time.sleep(0.05)
    pytest.fail("libvirtd did not answer again")
