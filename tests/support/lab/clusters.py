import time
from collections.abc import Callable

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView

LIMIT_S = 60.0


def until(client: SbfClient, key: str, reached: Callable[[ClusterView], bool]) -> ClusterView:
    deadline = time.monotonic() + LIMIT_S
    view = client.cluster(key)
    while not reached(view):
        assert time.monotonic() < deadline, f"{key} is still {view.state}: {view.reason}; {view.placements}"
        view = client.cluster(key, after=view.version, wait=5)
    return view


def ended(view: ClusterView) -> bool:
    return view.state in ENDED_STATES and not view.quarantined


def active(view: ClusterView) -> bool:
    return view.state is ClusterState.ACTIVE


def create(client: SbfClient, key: str, spec: ClusterSpec) -> ClusterView:
    client.put_cluster(key, ClusterRequest(spec=spec))
    return until(client, key, active)


def remove(client: SbfClient, *keys: str) -> None:
    for key in keys:
        client.delete_cluster(key)
    for key in keys:
        until(client, key, ended)


def pings(lab: Lab, view: ClusterView, guest: int, *options: str) -> bool:
    sender = view.spec.guests[guest]
    domain = next(name for name in read_guests(lab, sender.host) if view.id in name and name.endswith(sender.name))
    return lab.run(sender.host, ("sh", "-c", ENTER_CONTAINER, domain, "/bin/ping", *options)).returncode == 0
