"""The rights of callers, as ``docs/how-to/give-access.md`` and ``docs/explanation/security.md`` describe them.

This module shares no code with ``sbf_service/domain/rights.py``. A *mark* is a text that occurs in the data of one
cluster only, for example the name of a guest. An answer must contain only marks that its caller may see.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from virtcloud.model.access import Role
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.views import ClusterView


@dataclass(frozen=True)
class Actor:
    """A caller with a token."""

    name: str
    role: Role
    sites: tuple[str, ...] = ()

    @property
    def is_user(self) -> bool:
        return self.role is Role.USER

    @property
    def sees_everything(self) -> bool:
        return self.role in {Role.OPERATOR, Role.SCHEDULER, Role.JOB_STARTER}


OPERATOR = Actor("eva", Role.OPERATOR)
SCHEDULER = Actor("pbs", Role.SCHEDULER)
USERS = tuple(Actor(name, Role.USER) for name in ("alice", "bob", "carol"))
ADMINISTRATORS = (
    Actor("ivo", Role.SITE_ADMINISTRATOR, ("brno",)),
    Actor("jana", Role.SITE_ADMINISTRATOR, ("praha", "plzen")),
)
AGENTS = tuple(Actor(name, Role.AGENT) for name in ("brno-h1", "praha-h1", "brno-gw", "praha-gw", "plzen-h1"))
STARTER = Actor("brno-h1", Role.JOB_STARTER)
ACTORS = (OPERATOR, SCHEDULER, *USERS, *ADMINISTRATORS, *AGENTS, STARTER)
GATEWAYS = frozenset({"brno-gw", "praha-gw"})
"""The gateways: their agents may not end clusters."""


def sites_of(view: ClusterView) -> set[str]:
    return {part.site for part in view.placements}


def reads(actor: Actor, view: ClusterView) -> bool:
    if actor.sees_everything:
        return True
    if actor.is_user:
        return view.spec.owner == actor.name
    if actor.role is Role.SITE_ADMINISTRATOR:
        return bool(sites_of(view) & set(actor.sites))
    return actor.name in {part.element for part in view.placements}


def ends(actor: Actor, view: ClusterView) -> bool:
    if actor.role is Role.JOB_STARTER:
        return actor.name in {part.element for part in view.placements}
    return reads(actor, view) and actor.name not in GATEWAYS


def extends(actor: Actor, view: ClusterView) -> bool:
    return actor.role in {Role.OPERATOR, Role.SCHEDULER} or is_owner(actor, view)


def owns(actor: Actor, view: ClusterView) -> bool:
    return actor.role is Role.OPERATOR or is_owner(actor, view)


def is_owner(actor: Actor, view: ClusterView) -> bool:
    return actor.is_user and view.spec.owner == actor.name


def controls(actor: Actor, view: ClusterView) -> bool:
    return owns(actor, view) or (actor.role is Role.SITE_ADMINISTRATOR and reads(actor, view))


def sees_vpn(actor: Actor, view: ClusterView) -> bool:
    at = {part.site for part in view.placements if part.kind == "gateway"}
    return owns(actor, view) or (actor.role is Role.SITE_ADMINISTRATOR and bool(at & set(actor.sites)))


def sees_devices(actor: Actor, view: ClusterView) -> bool:
    """Return whether the caller may see the names of all devices that may join a cluster."""
    return sees_vpn(actor, view) or (actor.role is Role.AGENT and actor.name in GATEWAYS and reads(actor, view))


Right = Callable[[Actor, ClusterView], bool]


def has_role_for(actor: Actor, right: str) -> bool:
    """Return whether the caller's role may perform the action on any cluster."""
    return actor.role in ROLES[right]


ROLES: Mapping[str, frozenset[Role]] = {
    "read": frozenset(Role),
    "end": frozenset(Role),
    "extend": frozenset({Role.USER, Role.OPERATOR, Role.SCHEDULER}),
    "own": frozenset({Role.USER, Role.OPERATOR}),
    "control": frozenset({Role.USER, Role.OPERATOR, Role.SITE_ADMINISTRATOR}),
    "vpn": frozenset({Role.USER, Role.OPERATOR, Role.SITE_ADMINISTRATOR}),
}
RIGHTS: Mapping[str, Right] = {
    "read": reads, "end": ends, "extend": extends, "own": owns, "control": controls, "vpn": sees_vpn,
}  # fmt: skip


def network_of(view: ClusterView) -> str:
    return view.network or view.key


def count_usage(views: Iterable[ClusterView], owner: str) -> dict[str, int]:
    """Return a user's clusters, networks, guests, CPUs and memory. A cluster counts until it has ended."""
    own = [view for view in views if view.spec.owner == owner and view.state not in ENDED_STATES]
    guests = [guest for view in own for guest in view.spec.guests]
    return {
        "clusters": len(own),
        "networks": sum(view.network is None for view in own),
        "guests": len(guests),
        "cpus": sum(guest.cpus for guest in guests),
        "memory_mb": sum(guest.memory_mb for guest in guests),
    }


def near_marks(view: ClusterView) -> set[str]:
    """Return the marks of a cluster that its whole network may see."""
    names = {view.spec.name} if view.spec.name else set()
    return {str(mark) for mark in (view.key, network_of(view), *names, *(guest.name for guest in view.spec.guests))}
