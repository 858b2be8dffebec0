"""Access: roles, tokens, quotas, and the admission rules of hosts.

SBF and a host's agent both check the host's admission rule.
"""

from collections.abc import Collection
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.durations import MAX_LEASE_LIMIT_S, MAX_TOKEN_S
from virtcloud.model.errors import BadInput
from virtcloud.model.message_text import list_known
from virtcloud.model.values import Name, PatternText, UserName


class ClusterOrigin(Document):
    """The owner of a cluster, and whether a batch system requested the cluster."""

    owner: UserName
    batch: bool
    """Whether a batch system requested the cluster."""

    def __str__(self) -> str:
        """Return a description of the origin for messages."""
        return f"a batch job of {self.owner}" if self.batch else self.owner


class AdmissionRule(Document):
    """The clusters that a host accepts: clusters of batch jobs, and clusters that certain users request themselves."""

    batch: bool = Field(default=True, description="Whether the hosts accept clusters of batch jobs.")
    users: Literal["all"] | tuple[UserName, ...] = Field(
        "all",
        description='Users who may request clusters without a batch system: `"all"`, or names; `[]`: no user.',
    )

    def allows(self, origin: ClusterOrigin) -> bool:
        """Return whether the host accepts a cluster of this origin."""
        if origin.batch:
            return self.batch
        return self.users == "all" or origin.owner in self.users

    def __str__(self) -> str:
        """Return a description of the admitted users and jobs for messages."""
        users = "all users" if self.users == "all" else f"users {', '.join(self.users)}" if self.users else ""
        return " and ".join(filter(None, ("batch jobs" if self.batch else "", users))) or "nobody"


ADMIT_EVERYBODY = AdmissionRule()


class Role(StrEnum):
    """The role of a caller. ``docs/how-to/give-access.md`` lists the rights of each role."""

    USER = "user"
    SITE_ADMINISTRATOR = "site-administrator"
    OPERATOR = "operator"
    AGENT = "agent"
    SCHEDULER = "scheduler"
    JOB_STARTER = "job-starter"


ELEMENT_ROLES = frozenset({Role.AGENT, Role.JOB_STARTER})
"""The roles of tokens that belong to one host or gateway. The name of such a token is the name of the element."""


class TokenId(PatternText):
    """The public part of a token, which identifies the token in lists and for a revocation."""

    __slots__ = ()
    pattern = r"[a-z2-7]{8}"
    meaning = "a token's id: eight characters, each a lower-case letter or a digit from 2 to 7"


TokenSeconds = Annotated[float, Field(gt=0, le=MAX_TOKEN_S)]


class TokenRequest(Document):
    """A request for a new token.

    ``name`` is the name of a user, administrator or scheduler; for an agent or a job starter, the name of the element.
    """

    name: UserName
    role: Role
    """Role of the token's holder."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    expires_in_s: TokenSeconds | None = None
    """Validity in seconds; null: valid until revoked."""

    @model_validator(mode="after")
    def _check_sites(self) -> Self:
        if bool(self.sites) != (self.role is Role.SITE_ADMINISTRATOR):
            expected = "at least one site" if self.role is Role.SITE_ADMINISTRATOR else "no sites"
            raise BadInput(f"expected {expected} for the role {self.role}, got {', '.join(self.sites) or 'none'}")
        if self.role in ELEMENT_ROLES:
            Name(self.name)
        return self


def describe_unknown_holder(name: str, role: Role, known: Collection[str]) -> str | None:
    """Return a warning if ``name`` is not the name of a host or gateway, but a token with this role needs such a name.

    ``known`` are the names of all hosts and gateways. Without hosts and gateways, return None: tokens may exist before
    the topology.
    """
    if role not in ELEMENT_ROLES or not known or name in known:
        return None
    similar = get_close_matches(name, sorted(known), n=1)
    named = f"similar: {similar[0]}" if similar else f"known: {list_known(name, known)}"
    return (
        f"the topology has no host or gateway {name} ({named}): until the topology contains this element, this token "
        "gives access to no element"
    )


class TokenView(Document):
    """A stored token, without the secret."""

    id: TokenId
    name: UserName
    role: Role
    """Role of the token's holder."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    created_at: datetime
    """When the token was created."""
    created_by: str
    """The caller who created the token."""
    expires_at: datetime | None = None
    """When the token becomes invalid; null: valid until revoked."""
    revoked_at: datetime | None = None
    """When the token was revoked."""
    last_used_at: datetime | None = None
    """When the token was last used. SBF updates this time at most once an hour."""


class NewToken(TokenView):
    """A new token with its secret."""

    token: str
    """The secret. SBF stores only the secret's hash, and shows the secret only in this answer."""


class Identity(Document):
    """The authenticated caller."""

    name: str
    """Name of the caller."""
    role: Role
    """Role of the caller."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    token: TokenId | None = None
    """ID of the token that the caller sent; null for a local user without a token."""


Amount = Annotated[int, Field(ge=0, le=10**12)]


class QuotaLimits(Document):
    """Limits of one user. ``sites`` and ``lease_s`` apply to each cluster; the other fields limit the user's totals.

    In the service's settings, ``None`` means no limit. In a single user's limits, ``None`` means the limit in the
    settings.
    """

    clusters: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="Maximum number of clusters of a user at the same time; default: no limit."
    )
    sites: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Maximum number of sites of one cluster; default: no limit."
    )
    lease_s: Annotated[float, Field(gt=0, le=MAX_LEASE_LIMIT_S)] | None = Field(
        None,
        description="Maximum duration of a cluster in seconds, including all extensions; default: no limit.",
    )
    networks: Amount | None = Field(
        None,
        description="Maximum number of networks of a user at the same time; a cluster that joins the network of "
        "another cluster does not count; default: no limit.",
    )
    guests: Amount | None = Field(
        None, description="Maximum number of guests of a user at the same time; default: no limit."
    )
    cpus: Amount | None = Field(None, description="Maximum number of CPUs of all guests of a user; default: no limit.")
    memory_mb: Amount | None = Field(
        None, description="Maximum memory of all guests of a user in MiB; default: no limit."
    )
    images_mb: Amount | None = Field(
        None, description="Maximum size of all images that SBF stores for a user in MiB; default: no limit."
    )


class QuotaView(Document):
    """A user's quota: the limits and the current usage."""

    user: UserName
    limits: QuotaLimits
    """The limits that apply: the user's own limits, or else the limits in the service's settings."""
    own: QuotaLimits
    """The limits that were set for this user only."""
    clusters: int
    """Number of clusters that the user has."""
    networks: int = 0
    """Number of networks that the user has."""
    guests: int = 0
    """Number of guests that the user has."""
    cpus: int = 0
    """Number of virtual processors of all guests of the user."""
    memory_mb: int = 0
    """Memory of all guests of the user in MiB."""
    images_mb: int = 0
    """Size of all images that SBF stores for the user in MiB."""
