"""A host loses its power while it has guests and jobs, and boots again. Meanwhile, one of the jobs ends."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from lab_clusters import active, create, ended, remove, until
from lab_jobs import ask

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.lab_images import HOST_KEY
from virtcloud.lab.snapshot import read_guests, read_interfaces, run_checked
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.guests import GuestPower
from virtcloud.model.views import ClusterView

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
TEXT = "written before the power failure\n"
GUEST_FILES = "/run/virtcloud/agent/guests"


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of clusters on the host: interfaces, filters (nft), running guests, the job, and the host key."""

    interfaces: tuple[str, ...]
    filters: str
    guests: tuple[str, ...]
    job: dict[str, Any]
    job_files: str
    host_key: str


@dataclass(frozen=True, slots=True)
class Outage:
    """The host before and after the power failure, and the ended job's cluster during and after the failure."""

    before: HostState
    after: HostState
    ended_during: ClusterView
    ended_after: ClusterView
    clusters: dict[str, str]


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def outage(lab: Lab, client: SbfClient) -> Iterator[Outage]:
    """The only power failure of this module. The user stops a guest before, and a job ends during the failure."""
    for key in (KEPT, ENDED):
        ask(lab, HOST, {"do": "up", "cluster": key, "attempt": 0, "head": True, "user": USER})
    spec = ClusterSpec.model_validate({"owner": USER, "guests": GUESTS})
    kept = create(client, KEPT, spec)
    gone = create(client, ENDED, ClusterSpec.model_validate({"owner": USER, "guests": [{**GUEST, "name": "plain"}]}))
    (state,) = ask(lab, HOST, {"do": "state", "wait": 30, "cluster": KEPT, "attempt": 0})
    assert state["state"] == "up", state
    client.set_guest_power(KEPT, "stopped", GuestPower.OFF)
    stopped = client.guest(KEPT, "stopped")
    client.guest(KEPT, "stopped", after=stopped.confirmed_revision, wait=30)
    for guest in ("plain", "disk"):
        run_in_guest(lab, kept, guest, "/bin/sh", "-c", f"echo '{TEXT.strip()}' >/kept; sync")
    before = read_state(lab, kept)
    with ThreadPoolExecutor() as pool:
        lab.power_off(HOST)
        ended_during = client.delete_cluster(ENDED)
        degraded = pool.submit(until, client, KEPT, lambda view: view.state is ClusterState.DEGRADED)
        lab.power_on(HOST)
        degraded.result()
    until(client, KEPT, active)
    ended_after = until(client, ENDED, ended)
    yield Outage(before, read_state(lab, kept), ended_during, ended_after, {KEPT: kept.id, ENDED: gone.id})
    remove(client, KEPT)


def run_in_guest(lab: Lab, cluster: ClusterView, guest: str, *argv: str) -> str:
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name and name.endswith(guest))
    return run_checked(lab, HOST, "sh", "-c", ENTER_CONTAINER, domain, *argv)


def read_state(lab: Lab, kept: ClusterView) -> HostState:
    """Read the host's state."""
    (job,) = ask(lab, HOST, {"do": "state", "cluster": KEPT, "attempt": 0})
    return HostState(
        interfaces=tuple(one for one in read_interfaces(lab, HOST) if not one.startswith("vc")),
        filters=run_checked(lab, HOST, "nft", "-s", "list", "table", "bridge", "virtcloud"),
        guests=read_guests(lab, HOST),
        job=job,
        job_files=run_checked(lab, HOST, "find", "/run/virtcloud/jobs"),
        host_key=run_in_guest(lab, kept, "plain", "/bin/cat", HOST_KEY),
    )


def test_x(outage):
    print(outage)
    assert 0
