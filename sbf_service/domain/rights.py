"""The rights table: the actions of each role, and the scope of each right. Pure.

A job starter also needs a confirmation by the batch server for each job (decision 34).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, unique
from typing import Self

from sbf_service.domain.authentication import Principal
from virtcloud.model.access import Role
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import JobStatement


@unique
class Action(StrEnum):
    """An action. The value is used in denials: "alice (user) may not change the pool of site brno"."""

    READ_CLUSTER = "see"
    CREATE_CLUSTER = "create"
    END_CLUSTER = "end"
    EXTEND_CLUSTER = "extend the lease of"
    SHARE_CLUSTER = "share the network of"
    VERIFY_CLUSTER = "verify the paths of"
    CONTROL_GUEST = "stop, start, reset or read the log of"
    REACH_GUEST = "connect to"
    JOIN_NETWORK = "join the network of"
    READ_VPN = "see the VPN access to"
    REVOKE_VPN = "revoke VPN access to"
    INVITE_USER = "invite users to"
    PUBLISH_GUEST = "publish guests of"
    RENEW_AUTHORITY = "renew the certificate authority for VPN access"
    READ_SITES = "list sites"
    READ_QUARANTINE = "read the quarantine of"
    SET_POOL = "change the pool of"
    ADOPT_PORT = "adopt or release ports of"
    DECLARE_CLEAN = "declare VLAN IDs clean at"
    VERIFY_SITE = "verify the cables of"
    READ_TOPOLOGY = "read the topology"
    SET_TOPOLOGY = "change the topology"
    SET_SITE = "change the topology of"
    READ_ELEMENT = "read"
    COMPARE_ELEMENT = "compare"
    RECONCILE_ELEMENT = "reconcile"
    REPORT_FOR_ELEMENT = "report for"
    READ_AUDIT = "read the audit log of"
    MANAGE_TOKENS = "create, list or revoke tokens"
    CONFIRM_JOB = "confirm"
    READ_QUOTA = "read the quota of"
    SET_QUOTA = "set the quota of"
    READ_KEYS = "list the SSH keys of"
    CHANGE_KEYS = "change the SSH keys of"
    READ_IMAGE = "use"
    ADD_IMAGE = "add"
    SHARE_IMAGE = "share"
    REMOVE_IMAGE = "remove"
    CERTIFY_IMAGE = "certify images for"


class RightScope(Enum):
    """The scope of a right."""

    ALL = "all resources"
    OWN = "resources of the caller"
    SITES = "resources at the caller's sites"
    ELEMENT = "resources on the caller's element"
    HOST = "resources on the caller's element, if the element is a host"


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The resource that a call concerns, with the properties on which rights depend."""

    description: str = ""
    owner: str | None = None
    sites: frozenset[Name] = field(default_factory=frozenset)
    elements: frozenset[Name] = field(default_factory=frozenset)
    hosts: frozenset[Name] = field(default_factory=frozenset)

    @classmethod
    def of_user(cls, user: UserName) -> Self:
        """Return the resource for a user's quota and public keys."""
        return cls(user, owner=user)


WHOLE_SERVICE = ProtectedResource()

OWN_IMAGES = (Action.READ_IMAGE, Action.ADD_IMAGE, Action.SHARE_IMAGE, Action.REMOVE_IMAGE)
"""The actions of users and site administrators on their own images."""

RIGHTS: Mapping[Role, Mapping[Action, RightScope]] = {
    Role.USER: {
        Action.READ_CLUSTER: RightScope.OWN,
        Action.CREATE_CLUSTER: RightScope.OWN,
        Action.END_CLUSTER: RightScope.OWN,
        Action.EXTEND_CLUSTER: RightScope.OWN,
        Action.SHARE_CLUSTER: RightScope.OWN,
        Action.VERIFY_CLUSTER: RightScope.OWN,
        Action.CONTROL_GUEST: RightScope.OWN,
        Action.REACH_GUEST: RightScope.OWN,
        Action.JOIN_NETWORK: RightScope.OWN,
        Action.READ_VPN: RightScope.OWN,
        Action.REVOKE_VPN: RightScope.OWN,
        Action.INVITE_USER: RightScope.OWN,
        Action.PUBLISH_GUEST: RightScope.OWN,
        Action.READ_AUDIT: RightScope.OWN,
        Action.READ_QUOTA: RightScope.OWN,
        Action.READ_KEYS: RightScope.OWN,
        Action.CHANGE_KEYS: RightScope.OWN,
        Action.READ_SITES: RightScope.ALL,
        **dict.fromkeys(OWN_IMAGES, RightScope.OWN),
    },
    Role.SITE_ADMINISTRATOR: {
        Action.READ_CLUSTER: RightScope.SITES,
        Action.END_CLUSTER: RightScope.SITES,
        Action.VERIFY_CLUSTER: RightScope.SITES,
        Action.CONTROL_GUEST: RightScope.SITES,
        Action.READ_VPN: RightScope.SITES,
        Action.REVOKE_VPN: RightScope.SITES,
        Action.SET_POOL: RightScope.SITES,
        Action.ADOPT_PORT: RightScope.SITES,
        Action.DECLARE_CLEAN: RightScope.SITES,
        Action.SET_SITE: RightScope.SITES,
        Action.VERIFY_SITE: RightScope.SITES,
        Action.COMPARE_ELEMENT: RightScope.SITES,
        Action.RECONCILE_ELEMENT: RightScope.SITES,
        Action.READ_AUDIT: RightScope.SITES,
        Action.READ_QUARANTINE: RightScope.SITES,
        Action.READ_SITES: RightScope.ALL,
        Action.READ_TOPOLOGY: RightScope.ALL,
        Action.READ_ELEMENT: RightScope.ALL,
        **dict.fromkeys(OWN_IMAGES, RightScope.OWN),
        Action.READ_IMAGE: RightScope.ALL,
        Action.CERTIFY_IMAGE: RightScope.SITES,
    },
    Role.OPERATOR: dict.fromkeys(Action, RightScope.ALL),
    Role.AGENT: {
        Action.READ_CLUSTER: RightScope.ELEMENT,
        Action.END_CLUSTER: RightScope.HOST,  # not for agents of gateways: no jobs run on gateways
        Action.READ_ELEMENT: RightScope.ELEMENT,
        Action.REPORT_FOR_ELEMENT: RightScope.ELEMENT,
        Action.READ_IMAGE: RightScope.ELEMENT,
    },
    Role.SCHEDULER: {
        Action.READ_CLUSTER: RightScope.ALL,
        Action.CREATE_CLUSTER: RightScope.ALL,
        Action.END_CLUSTER: RightScope.ALL,
        Action.EXTEND_CLUSTER: RightScope.ALL,
        Action.CONFIRM_JOB: RightScope.ALL,
        Action.READ_QUOTA: RightScope.ALL,
        Action.READ_SITES: RightScope.ALL,
        Action.READ_TOPOLOGY: RightScope.ALL,
        Action.READ_ELEMENT: RightScope.ALL,
    },
    Role.JOB_STARTER: {
        Action.READ_CLUSTER: RightScope.ALL,  # a job starter reads the addresses of the network that the job joins
        Action.CREATE_CLUSTER: RightScope.ELEMENT,  # SBF also requires a confirmation of the job by the batch server
        Action.END_CLUSTER: RightScope.ELEMENT,
    },
}

UNLISTED_ROLES = frozenset({Role.JOB_STARTER})
"""Roles that denials do not suggest, because a person cannot have these roles."""


def find_scope(principal: Principal, action: Action) -> RightScope | None:
    """Return the scope of a principal's right to an action, or None if the principal has no right to the action."""
    return RIGHTS[principal.role].get(action)


def is_allowed(principal: Principal, action: Action, resource: ProtectedResource = WHOLE_SERVICE) -> bool:
    """Return whether a principal may perform an action on a resource."""
    match find_scope(principal, action):
        case RightScope.ALL:
            return True
        case RightScope.OWN:
            return resource.owner == principal.name
        case RightScope.SITES:
            return bool(resource.sites & principal.sites)
        case RightScope.ELEMENT:
            return principal.name in resource.elements
        case RightScope.HOST:
            return principal.name in resource.hosts
        case None:
            return False


def may_read_secrets(principal: Principal) -> bool:
    """Return whether a caller of the API may read the secrets of the guests in a wanted document.

    Agents may. Operators without a token may: such an operator is root or the service's user on SBF's machine, and can
    read SBF's database anyway. An operator's session with the console has no token either, but it cannot call the API.
    An operator with a token may not: the operator could create an agent's token, but the audit log would show this
    token.
    """
    return principal.role is Role.AGENT or (principal.role is Role.OPERATOR and principal.token is None)


def describe_denial(principal: Principal, action: Action, resource: ProtectedResource = WHOLE_SERVICE) -> str:
    """Return the message of a denial: the denied action, and the roles that may perform this action."""
    denied = f"{action} {resource.description}".strip()
    entitled = _join_alternatives(_list_entitled_roles(action, resource))
    return f"{principal} may not {denied}: the action requires {entitled}"


def _list_entitled_roles(action: Action, resource: ProtectedResource) -> list[str]:
    sites = ", ".join(sorted(resource.sites)) or "its site"
    element = next(iter(resource.elements)) if len(resource.elements) == 1 else "one of its elements"
    nearest = {
        RightScope.OWN: f"its owner ({resource.owner})" if resource.owner else "its owner",
        RightScope.SITES: f"a site administrator of {sites}",
    }
    listed = {role: rights for role, rights in RIGHTS.items() if role not in UNLISTED_ROLES}
    scopes = {role: rights[action] for role, rights in listed.items() if action in rights}
    limited = [
        nearest.get(scope, f"the {role} of {element}") for role, scope in scopes.items() if scope is not RightScope.ALL
    ]
    unlimited = [
        f"{'an' if role is Role.OPERATOR else 'a'} {role}" for role, scope in scopes.items() if scope is RightScope.ALL
    ]
    return [*dict.fromkeys(limited), *unlimited]


def _join_alternatives(alternatives: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(alternatives[:-1]), alternatives[-1])))


@dataclass(frozen=True, slots=True)
class JobClusterRequest:
    """A host's request for a job's cluster. ``network`` is the ID of the network that the cluster joins."""

    key: str
    starter: str
    owner: str
    hosts: tuple[Name, ...]
    joins: str | None
    network: str | None
    sites: tuple[Name, ...]

    @property
    def text(self) -> str:
        """The stored form of the request. A confirmation is valid for exactly one request."""
        return f"{self.owner} on {', '.join(self.hosts)} joins {self.network or self.joins} at {', '.join(self.sites)}"


def check_job_confirmation(request: JobClusterRequest, statement: JobStatement, network: str | None) -> None:
    """Raise Forbidden when the batch server's confirmation does not cover a request.

    ``network`` is the current ID of the network that the job requested.
    """
    job = f"{request.starter} (job-starter) may not create the cluster of job {request.key}"
    if request.starter not in statement.hosts:
        raise Forbidden(
            f"{job}: the batch system runs the job on {_join_hosts(statement.hosts)}, not on {request.starter}"
        )
    if request.owner != statement.owner:
        raise Forbidden(f"{job} for {request.owner}: the job belongs to {statement.owner}")
    if others := sorted(set(request.hosts) - set(statement.hosts)):
        raise Forbidden(
            f"{job} on {', '.join(others)}: the batch system runs the job on {_join_hosts(statement.hosts)}"
        )
    if request.joins is not None and (network is None or network != request.network):
        requested = f"network {statement.network}" if statement.network else "no network to join"
        raise Forbidden(f"{job} in network {request.joins}: the job requested {requested}")
    if request.sites:
        raise Forbidden(
            f"{job} at sites without hosts ({', '.join(request.sites)}): a job uses the sites of its hosts only"
        )


def _join_hosts(hosts: tuple[Name, ...]) -> str:
    return ", ".join(sorted(hosts)) or "no host"
