"""Tells the lab's SBF what there is, gives every agent its token, and waits until all have found it."""

import time
from pathlib import Path

from virtcloud.client import ANY_VERSION, SbfClient
from virtcloud.credentials import write_token
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.event import Event, Watcher
from virtcloud.lab.file import LabFile
from virtcloud.lab.plan import addressed
from virtcloud.lab.services import token_folder
from virtcloud.lab.state import State
from virtcloud.model.access import Role
from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import Pool

AGENTS_S = 60.0
POLL_S = 0.2
WITH_AGENTS = (ElementKind.HOST, ElementKind.GATEWAY)


def feed(lab: LabFile, state: State, watch: Watcher) -> None:
    """Put the topology, with the devices' management addresses, the pools, and agents' tokens; may be repeated."""
    watch(Event("topology and pools", "begin"))
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        client.put_topology(addressed(lab.topology), ANY_VERSION)
        for site, vlans in lab.pools.items():
            client.put_pool(site, Pool(vlans=vlans))
        for name in agents(lab.topology):
            _give_token(client, state, name)
    watch(Event("topology and pools", "done"))


def agents(topology: Topology) -> list[Name]:
    """Give the elements that have an agent."""
    return [name for name, element in topology.elements.items() if kind_of(element) in WITH_AGENTS]


def _give_token(client: SbfClient, state: State, element: Name) -> None:
    file = Path(token_folder(str(state.folder), element)) / "token"
    if not file.exists():
        write_token(file, client.create_token(element, Role.AGENT).token)


def await_agents(state: State, watch: Watcher) -> None:
    """Wait until SBF has heard of every agent; raises :class:`LabFailed` that names the silent ones."""
    watch(Event("agents", "begin"))
    deadline = time.monotonic() + AGENTS_S
    with SbfClient(f"unix://{state.sbf_socket}") as client:
        while silent := _silent(client):
            if time.monotonic() > deadline:
                raise LabFailed(f"agents of {', '.join(silent)} did not reach SBF within {AGENTS_S:.0f} s")
            time.sleep(POLL_S)
    watch(Event("agents", "done"))


def _silent(client: SbfClient) -> list[str]:
    elements = client.elements()
    return [one.name for one in elements if one.kind in WITH_AGENTS and one.last_seen is None]
