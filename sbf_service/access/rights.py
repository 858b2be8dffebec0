"""The table of rights: which role may do what, and how far that reaches. Pure; the only place where this is said."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, unique

from sbf_service.access.principal import Principal
from virtcloud.model.access import Role
from virtcloud.model.values import Name


@unique
class Action(StrEnum):
    """What a call does, as its refusal says it: "alice (user) may not change the pool of site brno"."""

    READ_CLUSTER = "see"
    CREATE_CLUSTER = "create"
    END_CLUSTER = "end"
    EXTEND_CLUSTER = "extend the lease of"
    SHARE_CLUSTER = "share the network of"
    READ_SITES = "look at sites"
    READ_QUARANTINE = "look at the quarantine of"
    SET_POOL = "change the pool of"
    ADOPT_PORT = "adopt or release ports of"
    SAY_CLEAN = "say what is clean at"
    VERIFY_SITE = "verify the cables of"
    READ_TOPOLOGY = "look at the topology"
    SET_TOPOLOGY = "change the topology"
    SET_SITE = "change the topology of"
    READ_ELEMENT = "look at"
    COMPARE_ELEMENT = "compare"
    RECONCILE_ELEMENT = "reconcile"
    SPEAK_FOR_ELEMENT = "speak for"
    READ_AUDIT = "read the audit log of"
    KEEP_TOKENS = "create, list or revoke tokens"
    ANSWER_FOR_JOB = "answer for"
    READ_QUOTA = "look at the quota of"
    SET_QUOTA = "set the quota of"


class Reach(Enum):
    """How far a right reaches."""

    ALL = "everything"
    OWN = "what belongs to the caller"
    SITES = "what touches the caller's sites"
    ELEMENT = "what touches the caller's element"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about: in words, and by what rights may depend on."""

    words: str = ""
    owner: str | None = None
    sites: frozenset[Name] = field(default_factory=frozenset)
    elements: frozenset[Name] = field(default_factory=frozenset)


WHOLE = Subject()
"""The subject of a call that is about the service as a whole."""

RIGHTS: Mapping[Role, Mapping[Action, Reach]] = {
    Role.USER: {
        Action.READ_CLUSTER: Reach.OWN,
        Action.CREATE_CLUSTER: Reach.OWN,
        Action.END_CLUSTER: Reach.OWN,
        Action.EXTEND_CLUSTER: Reach.OWN,
        Action.SHARE_CLUSTER: Reach.OWN,
        Action.READ_AUDIT: Reach.OWN,
        Action.READ_QUOTA: Reach.OWN,
        Action.READ_SITES: Reach.ALL,
    },
    Role.SITE_ADMINISTRATOR: {
        Action.READ_CLUSTER: Reach.SITES,
        Action.END_CLUSTER: Reach.SITES,
        Action.SET_POOL: Reach.SITES,
        Action.ADOPT_PORT: Reach.SITES,
        Action.SAY_CLEAN: Reach.SITES,
        Action.SET_SITE: Reach.SITES,
        Action.VERIFY_SITE: Reach.SITES,
        Action.COMPARE_ELEMENT: Reach.SITES,
        Action.RECONCILE_ELEMENT: Reach.SITES,
        Action.READ_AUDIT: Reach.SITES,
        Action.READ_QUARANTINE: Reach.SITES,
        Action.READ_SITES: Reach.ALL,
        Action.READ_TOPOLOGY: Reach.ALL,
        Action.READ_ELEMENT: Reach.ALL,
    },
    Role.OPERATOR: dict.fromkeys(Action, Reach.ALL),
    Role.AGENT: {
        Action.READ_CLUSTER: Reach.ELEMENT,
        Action.END_CLUSTER: Reach.ELEMENT,
        Action.READ_ELEMENT: Reach.ELEMENT,
        Action.SPEAK_FOR_ELEMENT: Reach.ELEMENT,
    },
    Role.SCHEDULER: {
        Action.READ_CLUSTER: Reach.ALL,
        Action.CREATE_CLUSTER: Reach.ALL,
        Action.END_CLUSTER: Reach.ALL,
        Action.EXTEND_CLUSTER: Reach.ALL,
        Action.ANSWER_FOR_JOB: Reach.ALL,
        Action.READ_QUOTA: Reach.ALL,
        Action.READ_SITES: Reach.ALL,
        Action.READ_TOPOLOGY: Reach.ALL,
        Action.READ_ELEMENT: Reach.ALL,
    },
    Role.JOB_STARTER: {
        Action.READ_CLUSTER: Reach.ALL,  # to join a network takes its addresses
        Action.CREATE_CLUSTER: Reach.ELEMENT,  # and the batch system's server must have answered for the job: proof.py
        Action.END_CLUSTER: Reach.ELEMENT,
    },
}

UNASKED = frozenset({Role.JOB_STARTER})


def reach(principal: Principal, action: Action) -> Reach | None:
    """Say how far a principal's right to an action reaches; None where it has none."""
    return RIGHTS[principal.role].get(action)


def may(principal: Principal, action: Action, subject: Subject = WHOLE) -> bool:
    """Say whether a principal may do this."""
    match reach(principal, action):
        case Reach.ALL:
            return True
        case Reach.OWN:
            return subject.owner == principal.name
        case Reach.SITES:
            return bool(subject.sites & principal.sites)
        case Reach.ELEMENT:
            return principal.name in subject.elements
        case None:
            return False


def refusal(principal: Principal, action: Action, subject: Subject = WHOLE) -> str:
    """Say who may not do what, and who may."""
    wanted = f"{action} {subject.words}".strip()
    return f"{principal} may not {wanted}: that takes {_listed(_entitled(action, subject))}"


def _entitled(action: Action, subject: Subject) -> list[str]:
    """Name those who may, the nearest first; a job starter does nothing for who is refused."""
    sites = ", ".join(sorted(subject.sites)) or "its site"
    element = next(iter(subject.elements)) if len(subject.elements) == 1 else "an element of it"
    words = {
        Reach.OWN: f"its owner ({subject.owner})" if subject.owner else "its owner",
        Reach.SITES: f"a site administrator of {sites}",
    }
    asked = {role: rights for role, rights in RIGHTS.items() if role not in UNASKED}
    reaches = {role: rights[action] for role, rights in asked.items() if action in rights}
    near = [words.get(one, f"the {role} of {element}") for role, one in reaches.items() if one is not Reach.ALL]
    far = [f"{'an' if role is Role.OPERATOR else 'a'} {role}" for role, one in reaches.items() if one is Reach.ALL]
    return [*near, *far]


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
