"""The troubles of elements, sites and clusters, each with a remedy. Pure.

The messages come from the API. This module adds remedies to messages without a remedy.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sbf_service.domain.agent_messages import SILENCE, find_agent_message
from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element_views import ElementView, SiteView
from virtcloud.model.values import Name, format_utc
from virtcloud.model.views import ClusterView, PlacementProgress


class Level(StrEnum):
    """The level of an element, a site, a cluster, a placement or a trouble, from good to bad."""

    OK = "ok"
    BUSY = "busy"
    WARNING = "warning"
    FAILED = "failed"


ORDER: Final = tuple(Level)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A trouble of an element, site or cluster, with the remedy."""

    level: Level
    subject: str
    site: str
    path: str
    message: str
    remedy: str


RETRIES: Final = "SBF tries again by itself."


def find_element_troubles(view: ElementView, prefix: str) -> Iterator[Trouble]:
    """Yield the troubles of an element. ``prefix`` is the address of the console."""

    def make(level: Level, message: str, remedy: str) -> Trouble:
        return Trouble(level, f"{view.kind} {view.name}", view.site, f"{prefix}/elements/{view.name}", message, remedy)

    is_device = view.kind in DEVICE_KINDS
    is_silent = view.trouble is None or find_agent_message(view.trouble) is SILENCE
    if not is_device and view.last_seen is None and is_silent:
        yield make(
            Level.WARNING if view.reachable else Level.FAILED,
            f"the agent of {view.kind} {view.name} has never called SBF",
            f"Install the agent on {view.name}, with a token of the role agent: virtcloud token create {view.name} "
            "--role agent.",
        )
    elif not view.reachable:
        yield make(Level.FAILED, view.trouble or _describe_silence(view), _remedy_for_silence(view, is_device))
    elif view.trouble is not None:
        yield make(Level.FAILED, view.trouble, find_remedy(view.trouble, str(view.name), is_device=is_device))
    if view.unsaved_since is not None:
        yield make(
            Level.WARNING,
            f"the configuration has possibly not been saved since {format_utc(view.unsaved_since)}; a restart of the "
            "device could restore an older configuration",
            f"{RETRIES} If this warning remains, save the configuration on the device, then run: virtcloud element "
            f"reconcile {view.name}.",
        )
    for notice in view.notices:
        yield make(Level.WARNING, notice, "Correct the destination in the topology, or the name server of the gateway.")


def _describe_silence(view: ElementView) -> str:
    if view.last_seen is None:
        return f"{view.kind} {view.name} has never answered"
    return f"{view.kind} {view.name} has not answered since {format_utc(view.last_seen)}"


def _remedy_for_silence(view: ElementView, is_device: bool) -> str:
    if is_device:
        return (
            "Check the device, its management address in the topology, and the network between SBF and the device. "
            f"{RETRIES} To try at once: virtcloud element reconcile {view.name}."
        )
    known = find_agent_message(view.trouble or "") or SILENCE
    return f"{known.remedy} {RETRIES}"


def find_remedy(message: str, element: str, *, is_device: bool) -> str:
    """Return the remedy for an element's message."""
    known = find_agent_message(message)
    if known is not None:
        return known.remedy
    if is_device:
        return (
            f"Do what the message says. To compare the device with its wanted state: virtcloud element diff {element} "
            f"--read. {RETRIES}"
        )
    return f"Do what the message says. On {element}: virtcloud doctor --host. {RETRIES}"


def find_site_troubles(view: SiteView, prefix: str) -> Iterator[Trouble]:
    """Yield the troubles of a site's pool."""
    path = f"{prefix}/sites/{view.name}"

    def make(level: Level, message: str, remedy: str) -> Trouble:
        return Trouble(level, f"site {view.name}", view.name, path, message, remedy)

    if not view.pool:
        yield make(
            Level.WARNING,
            f"site {view.name} has no pool, so clusters cannot use the site",
            f"Set the VLAN IDs for clusters: virtcloud pool set {view.name} 100-199.",
        )
    elif not view.free:
        yield make(
            Level.FAILED,
            f"no VLAN ID of the pool of {view.name} is free, so new clusters are refused",
            f"Enlarge the pool: virtcloud pool set {view.name} RANGES. Or end clusters, or declare quarantined VLAN "
            "IDs clean.",
        )
    for quarantined in view.quarantine:
        unconfirmed = ", ".join(sorted(quarantined.elements))
        yield make(
            Level.WARNING,
            f"VLAN {quarantined.vlan} has been in quarantine since {format_utc(quarantined.since)}: "
            f"{unconfirmed or 'at least one element'} did not confirm the removal of cluster {quarantined.cluster}",
            f"Repair {unconfirmed or 'the elements with an error'}; the quarantine then ends by itself. If the element "
            "never returns, declare the VLAN ID clean on the page of the site.",
        )
    for use in view.other_use:
        yield make(
            Level.WARNING,
            f"VLAN {use.vlan} of the pool is in other use on {use.element}"
            + (f" (named {use.name})" if use.name else "")
            + (f", ports {', '.join(use.ports)}" if use.ports else ""),
            "Remove the VLAN from the device, or take the VLAN ID out of the pool.",
        )


def find_cluster_troubles(view: ClusterView, prefix: str) -> Iterator[Trouble]:
    """Yield the troubles of a cluster and of its elements."""
    for placement in view.placements:
        if placement.trouble is not None or not placement.reachable:
            is_device = placement.kind in DEVICE_KINDS
            message = placement.trouble or f"{placement.kind} {placement.element} does not answer"
            remedy = (
                find_remedy(message, placement.element, is_device=is_device)
                if placement.reachable
                else f"Ask an administrator of {placement.site} to repair {placement.element}. {RETRIES}"
            )
            yield Trouble(
                Level.FAILED,
                f"{placement.kind} {placement.element}",
                placement.site,
                f"{prefix}/elements/{placement.element}",
                message,
                remedy,
            )
    if view.state is ClusterState.FAILED:
        yield Trouble(
            Level.FAILED,
            f"cluster {view.key}",
            "",
            "",
            view.reason or "the cluster failed",
            "Remove the cause, and create the cluster again."
            + ("" if view.quarantined else " SBF has removed the cluster everywhere."),
        )
    if view.quarantined:
        yield Trouble(
            Level.WARNING,
            f"cluster {view.key}",
            "",
            "",
            "the VLAN IDs of the cluster are in quarantine, because an element has not confirmed the removal",
            "The quarantine ends when the element confirms the removal. If the element never returns, an administrator "
            "of the site must declare the VLAN ID clean.",
        )


def find_element_level(view: ElementView) -> Level:
    """Return the level of an element."""
    troubles = list(find_element_troubles(view, ""))
    if troubles:
        return find_worst(trouble.level for trouble in troubles)
    return Level.OK if view.confirmed_revision >= view.wanted_revision else Level.BUSY


def find_placement_level(progress: PlacementProgress, *, reachable: bool, has_trouble: bool) -> Level:
    """Return the level of a cluster's placement on an element."""
    if has_trouble or not reachable:
        return Level.FAILED
    return Level.BUSY if progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} else Level.OK


def find_worst(levels: Iterable[Level]) -> Level:
    """Return the worst of these levels; ``ok`` if ``levels`` is empty."""
    return max(levels, key=ORDER.index, default=Level.OK)


STATE_LEVELS: Final = {
    ClusterState.ACTIVE: Level.OK,
    ClusterState.RELEASED: Level.OK,
    ClusterState.DEGRADED: Level.FAILED,
    ClusterState.FAILING: Level.FAILED,
    ClusterState.FAILED: Level.FAILED,
}
"""The levels of a cluster's states. Other states have the level ``busy``."""


def find_state_level(state: ClusterState) -> Level:
    """Return the level of a cluster's state."""
    return STATE_LEVELS.get(state, Level.BUSY)


def select_troubles(troubles: Iterable[Trouble], sites: Collection[Name]) -> list[Trouble]:
    """Return the troubles at ``sites``, the worst first. Return all troubles if ``sites`` is empty."""
    found = [trouble for trouble in troubles if not sites or trouble.site in sites]
    return sorted(found, key=lambda trouble: (-ORDER.index(trouble.level), trouble.site, trouble.subject))
