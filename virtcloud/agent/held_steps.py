"""The steps that wait until SBF has checked that no other cluster uses the VLAN ID of the steps' network. Pure.

SBF's database may have been restored from a backup that lacks clusters.
"""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Final

from virtcloud.agent.file_servers.nfs_difference import ServeFiles
from virtcloud.agent.gateway.namespace_difference import BuildNamespace
from virtcloud.agent.gateway.vpn_difference import AddVpnPort
from virtcloud.agent.host_services.server_difference import ServeGuests
from virtcloud.agent.steps import BuildSegment, RemoveSegment, StartGuest, Step, StopGuests
from virtcloud.model.wanted import UNCHECKED_NETWORK

HELD_REASON: Final = (
    "SBF's database was restored from a backup: other clusters may still use the network's VLAN ID; SBF sets up the "
    "network after SBF has read all elements that may carry this VLAN ID (virtcloud element list)"
)
CreationStep = BuildSegment | ServeGuests | StartGuest | AddVpnPort | BuildNamespace | ServeFiles
"""The steps that create parts of a segment."""


def split_held_steps(steps: Iterable[Step]) -> tuple[list[Step], dict[str, str]]:
    """Return the steps to apply now, and the reasons of the held steps by cluster ID. Pure.

    If a segment has the requirement UNCHECKED_NETWORK, the steps that create parts of the segment are held. Existing
    parts stay: a guest whose restart is held is not stopped either, unless the guest's segment is removed.
    """
    waiting, others = list[CreationStep](), list[Step]()
    for step in steps:
        if isinstance(step, CreationStep) and UNCHECKED_NETWORK in step.segment.requires:
            waiting.append(step)
        else:
            others.append(step)
    removed = {step.cluster for step in others if isinstance(step, RemoveSegment)}
    starts = {(step.segment.id, step.guest.name) for step in waiting if isinstance(step, StartGuest)}
    permitted = (step if step.cluster in removed else _omit_restarts(step, starts) for step in others)
    return [step for step in permitted if step is not None], {step.cluster: HELD_REASON for step in waiting}


def _omit_restarts(step: Step, starts: Container[tuple[str, str]]) -> Step | None:
    """Return the step without the stops of the guests in ``starts``, or None if no guest is left."""
    if not isinstance(step, StopGuests):
        return step
    guests = tuple(guest for guest in step.guests if (step.cluster, guest) not in starts)
    files_stay = tuple(guest for guest in step.kept if guest in guests)
    return replace(step, guests=guests, kept=files_stay) if guests else None
