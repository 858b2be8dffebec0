"""A host with guests of two jobs loses power and boots again. Meanwhile, one of the jobs ends."""

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from support.lab.clusters import LIMIT_S, active, create, ended, pings, remove, until
from support.lab.jobs import ask

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, LabFailed
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.lab_images import HOST_KEY
from virtcloud.lab.node_services import BOOT_SCRIPT
from virtcloud.lab.snapshot import read_guests, read_interfaces, run_checked
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.guests import GuestPower
from virtcloud.model.views import ClusterView, PlacementProgress

pytestmark = pytest.mark.lab

HOST, OTHER = "plzen-h2", "praha-h2"
USER = "nobody"
KEPT, ENDED = "7001.pbs", "7002.pbs"
GUEST: dict[str, object] = {"host": HOST, "image": "busybox", "memory_mb": 32}
GUESTS = (
    {**GUEST, "name": "plain", "addresses": ["10.0.0.1/24"], "image": "busybox-ssh", "memory_mb": 64},
    {**GUEST, "name": "disk", "addresses": ["10.0.0.2/24"], "disk_mb": 64},
    {**GUEST, "name": "stopped", "addresses": ["10.0.0.3/24"]},
    {**GUEST, "name": "far", "addresses": ["10.0.0.4/24"], "host": OTHER},
)
WRITERS, TEXT = ("plain", "disk"), "written before the power failure"
BOOTS = "/run/boots"
PORT = re.compile(r"\bvc\d+-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class HostState:
    """The clusters' parts on the host: interfaces, nftables rules, filtered ports, guests and their files.

    ``far_ping``: whether a guest reaches a guest of the other host. ``job_files`` are the folders and sockets of jobs.
    """

    interfaces: tuple[str, ...]
    rules: str
    filtered_ports: frozenset[str]
    guests: tuple[str, ...]
    far_ping: bool
    files: dict[str, str]
    host_key: str
    job_files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outage:
    """The host before and after the power failure. ``kept`` and ``ended`` are the clusters of the two jobs.

    ``ended_meanwhile`` is the state of the cluster ``ended`` while the host had no power. ``degraded`` is the cluster
    ``kept`` before the host had restored this cluster. ``agent_log`` contains the lines that the agent logged after the
    power failure.
    """

    before: HostState
    after: HostState
    kept: ClusterView
    ended: ClusterView
    ended_meanwhile: ClusterState
    degraded: ClusterView
    agent_log: str
    refusal: str
    """The lab's answer to a command on the host without power."""


@pytest.fixture(scope="module")
def outage(lab: Lab, client: SbfClient) -> Iterator[Outage]:
    """Cut the host's power once for all tests. Before the cut, a user stops a guest. During the cut, a job ends."""
    kept, leaving = (open_job(lab, client, key, guests) for key, guests in ((KEPT, GUESTS), (ENDED, GUESTS[:1])))
    client.set_guest_power(KEPT, "stopped", GuestPower.OFF)
    stopped = client.guest(KEPT, "stopped")
    client.guest(KEPT, "stopped", after=stopped.confirmed_revision, wait=LIMIT_S)
    for guest in WRITERS:
        run_in_guest(lab, kept, guest, "/bin/sh", "-c", f"echo {TEXT} >/kept; sync")
    run_checked(lab, HOST, "sh", "-c", f"echo 'echo booted >> {BOOTS}' > {BOOT_SCRIPT}")
    before, log = read_state(lab, kept), lab.state.folder / f"log/{HOST}.agent.log"
    logged = log.stat().st_size
    lab.power_off(HOST)
    with pytest.raises(LabFailed) as refusal:
        lab.run(HOST, ["true"])
    meanwhile = client.delete_cluster(ENDED).state
    with ThreadPoolExecutor() as pool:
        degraded = pool.submit(until, client, KEPT, lambda view: view.state is ClusterState.DEGRADED)
        lab.power_on(HOST)
    until(client, KEPT, active)
    until(client, ENDED, ended)
    after, agent_log = read_state(lab, kept), log.read_bytes()[logged:].decode()
    yield Outage(before, after, kept, leaving, meanwhile, degraded.result(), agent_log, str(refusal.value))
    for key in (KEPT, ENDED):
        ask(lab, HOST, {"do": "remove", "cluster": key, "attempt": 0, "wait": 30})
    remove(client, KEPT)
    run_checked(lab, HOST, "rm", BOOT_SCRIPT)


def open_job(lab: Lab, client: SbfClient, key: str, guests: tuple[dict[str, object], ...]) -> ClusterView:
    ask(lab, HOST, {"do": "up", "cluster": key, "attempt": 0, "head": True, "user": USER})
    view = create(client, key, ClusterSpec.model_validate({"owner": USER, "guests": guests}))
    (state,) = ask(lab, HOST, {"do": "state", "wait": 30, "cluster": key, "attempt": 0})
    assert state["state"] == "up", state
    return view


def run_in_guest(lab: Lab, cluster: ClusterView, guest: str, *argv: str) -> str:
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name and name.endswith(f"-{guest}"))
    return run_checked(lab, HOST, "sh", "-c", ENTER_CONTAINER, domain, *argv)


def read_state(lab: Lab, cluster: ClusterView) -> HostState:
    return HostState(
        interfaces=read_interfaces(lab, HOST),
        rules=run_checked(lab, HOST, "nft", "list", "chain", "bridge", "virtcloud", "guest"),
        filtered_ports=frozenset(
            PORT.findall(run_checked(lab, HOST, "nft", "list", "set", "bridge", "virtcloud", "guests"))
        ),
        guests=read_guests(lab, HOST),
        far_ping=pings(lab, cluster, 0, "-c", "10", "-w", "20", "10.0.0.4"),
        files={guest: run_in_guest(lab, cluster, guest, "/bin/cat", "/kept") for guest in WRITERS},
        host_key=run_in_guest(lab, cluster, "plain", "/bin/cat", HOST_KEY),
        job_files=wait_for_job_files(lab, cluster.key),
    )


def wait_for_job_files(lab: Lab, key: str) -> tuple[str, ...]:
    """Wait until the job ``key`` has its files, which the agent creates after the network.

    Return all names in the folder of job files.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        names = run_checked(lab, HOST, "sh", "-c", "ls -A /run/virtcloud/jobs 2>/dev/null || :").split()
        if key in names or time.monotonic() > deadline:
            return tuple(sorted(names))
        time.sleep(0.5)


def of_cluster(names: Iterable[str], *words: str) -> list[str]:
    return sorted(name for name in names if any(word in name for word in words))


def test_the_network_of_the_remaining_cluster_is_restored(outage: Outage) -> None:
    vlan = str(next(iter(outage.ended.vlans.values())))
    gone = of_cluster(outage.before.interfaces, vlan)
    assert len(gone) == 4, "expected a bridge, a tagged interface, a guest's port and a job's port"
    assert sorted(outage.after.interfaces) == sorted(set(outage.before.interfaces) - set(gone))
    assert outage.after.far_ping


def test_the_guests_run_again_except_the_stopped_guest(outage: Outage) -> None:
    assert list(outage.after.guests) == of_cluster(outage.before.guests, outage.kept.id)
    assert [name.rpartition("-")[2] for name in outage.after.guests] == ["disk", "plain"]


def test_the_filters_of_the_remaining_guests_are_restored(outage: Outage) -> None:
    assert outage.after.rules == outage.before.rules
    assert len(outage.after.filtered_ports) == 3
    assert outage.after.filtered_ports < outage.before.filtered_ports


def test_files_that_guests_synced_survive_the_power_failure(outage: Outage) -> None:
    assert outage.after.files == {"plain": f"{TEXT}\n", "disk": f"{TEXT}\n"}


def test_a_guest_has_its_former_host_key(outage: Outage) -> None:
    assert outage.after.host_key == outage.before.host_key


def test_the_job_reaches_its_guests_without_a_hook(outage: Outage) -> None:
    assert list(outage.after.job_files) == of_cluster(outage.before.job_files, KEPT)


def test_a_cluster_deleted_during_the_outage_is_never_started(outage: Outage) -> None:
    assert outage.ended_meanwhile is ClusterState.DRAINING
    assert f"guest_files_removed domain=vc-{outage.ended.id}-plain" in outage.agent_log
    assert f"cluster={ENDED} step=" not in outage.agent_log


def test_the_cluster_is_degraded_until_the_host_has_restored_it(outage: Outage) -> None:
    (lost,) = (placement for placement in outage.degraded.placements if placement.element == HOST)
    assert lost.progress is PlacementProgress.ADDING


def test_the_boot_script_on_the_disk_runs_once(lab: Lab, outage: Outage) -> None:
    lab.power_on(HOST)
    assert run_checked(lab, HOST, "cat", BOOTS) == "booted\n"


def test_a_command_on_a_host_without_power_names_the_remedy(outage: Outage) -> None:
    assert outage.refusal == f"{HOST} is powered off; power it on with: virtcloud lab power {HOST} on"


def test_a_restart_of_libvirtd_does_not_restart_guests(lab: Lab, client: SbfClient, outage: Outage) -> None:
    start = read_start_time(lab, outage.kept)
    libvirtd = lab.service(HOST, "libvirtd")
    libvirtd.kill()
    libvirtd.start()
    client.set_guest_power(KEPT, "disk", GuestPower.OFF)
    deadline = time.monotonic() + LIMIT_S
    while len(guests := read_guests(lab, HOST)) > 1:
        assert time.monotonic() < deadline, guests
        time.sleep(0.5)
    assert guests == (f"vc-{outage.kept.id}-plain",)
    assert read_start_time(lab, outage.kept) == start


def test_a_guest_that_ended_without_libvirtd_starts_again(lab: Lab, client: SbfClient, outage: Outage) -> None:
    libvirtd = lab.service(HOST, "libvirtd")
    libvirtd.stop()
    run_checked(lab, HOST, "sh", "-c", f"kill -KILL $(cat /run/libvirt/lxc/vc-{outage.kept.id}-plain.pid)")
    assert f"vc-{outage.kept.id}-plain" not in read_guests(lab, HOST)
    libvirtd.start()
    client.set_guest_power(KEPT, "disk", GuestPower.ON)
    deadline = time.monotonic() + LIMIT_S
    while len(guests := read_guests(lab, HOST)) < 2:
        assert time.monotonic() < deadline, guests
        time.sleep(0.5)
    assert guests == (f"vc-{outage.kept.id}-disk", f"vc-{outage.kept.id}-plain")


def read_start_time(lab: Lab, cluster: ClusterView) -> str:
    return run_in_guest(lab, cluster, "plain", "/bin/cat", "/proc/1/stat").split()[21]
