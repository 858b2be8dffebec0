"""Access: roles, tokens, quotas, and the admission rules of hosts.

An admission rule states whose clusters a host accepts. SBF checks it, and each host's agent checks it again.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, UserName


class ClusterOrigin(Document):
    """The owner of a cluster, and whether a batch system requested it."""

    owner: UserName
    batch: bool
    """Whether a batch system requested the cluster."""


class AdmissionRule(Document):
    """The clusters that a host accepts: clusters of batch jobs, and clusters that certain users request themselves."""

    batch: bool = Field(default=True, description="Whether hosts accept clusters of batch jobs.")
    users: Literal["all"] | tuple[UserName, ...] = Field(
        "all",
        description='Users whose own requests for clusters hosts accept: `"all"`, or names; `[]` for batch jobs only.',
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
    """The role of a caller; ``docs/how-to/give-access.md`` lists the rights of each role."""

    USER = "user"
    SITE_ADMINISTRATOR = "site-administrator"
    OPERATOR = "operator"
    AGENT = "agent"
    SCHEDULER = "scheduler"
    JOB_STARTER = "job-starter"


class TokenId(PatternText):
    """The public part of a token. It identifies the token in lists and for revocation."""

    __slots__ = ()
    pattern = r"[a-z2-7]{8}"
    meaning = "a token's id: eight characters, lower case or 2 to 7"


TokenSeconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400)]


class TokenRequest(Document):
    """A request for a new token.

    ``name`` is the name of the user, administrator or scheduler; for an agent or a job starter it is the name of the
    element. ``sites`` are the sites of a site administrator. Without ``expires_in_s`` the token is valid until it is
    revoked.
    """

    name: UserName
    role: Role
    """The role."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    expires_in_s: TokenSeconds | None = None
    """Seconds of validity; null for no end."""

    @model_validator(mode="after")
    def _has_sites_where_they_mean_something(self) -> Self:
        if bool(self.sites) != (self.role is Role.SITE_ADMINISTRATOR):
            wanted = "at least one site" if self.role is Role.SITE_ADMINISTRATOR else "no sites"
            raise BadInput(f"expected {wanted} for the role {self.role}, got {', '.join(self.sites) or 'none'}")
        if self.role in {Role.AGENT, Role.JOB_STARTER}:
            Name(self.name)
        return self


class TokenView(Document):
    """A stored token, without the secret. ``last_used_at`` is exact to the hour."""

    id: TokenId
    name: UserName
    role: Role
    """The role."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    created_at: datetime
    """When the token was created."""
    created_by: str
    """The caller who created the token."""
    expires_at: datetime | None = None
    """When the token becomes invalid; null for no end."""
    revoked_at: datetime | None = None
    """When the token was revoked."""
    last_used_at: datetime | None = None
    """When the token was last used, to the hour."""


class NewToken(TokenView):
    """A token that was just created. ``token`` is shown once and not stored."""

    token: str
    """The token itself. It is shown only in this answer."""


class Identity(Document):
    """The caller as SBF identified it. ``token`` is the id of the caller's token, if the call had a token."""

    name: str
    """Name of the caller."""
    role: Role
    """Role of the caller."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    token: TokenId | None = None
    """Id of the token that the caller sent; null for a local user."""


Amount = Annotated[int, Field(ge=0, le=10**12)]


class QuotaLimits(Document):
    """The limits of one user: on all clusters of the user together, and on the size and duration of one cluster.

    None means that no limit is set here. If a user's limit is None, the limit of the service's settings applies.
    """

    clusters: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="Maximum number of clusters of a user at the same time; without it, no limit."
    )
    sites: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Maximum number of sites of one cluster; without it, no limit."
    )
    lease_s: Annotated[float, Field(gt=0, le=100 * 366 * 86400)] | None = Field(
        None,
        description="Maximum duration of a cluster in seconds, including all extensions; without it, no limit.",
    )
    networks: Amount | None = Field(
        None,
        description="Maximum number of networks of a user at the same time, members not counted; without it, no limit.",
    )
    guests: Amount | None = Field(
        None, description="Maximum number of guests of a user at the same time; without it, no limit."
    )
    cpus: Amount | None = Field(
        None, description="Maximum number of CPUs of all guests of a user; without it, no limit."
    )
    memory_mb: Amount | None = Field(
        None, description="Maximum memory of all guests of a user in MiB; without it, no limit."
    )


class QuotaView(Document):
    """A user's quota: ``limits`` are in force, ``own`` were set for this user. The other fields are the usage."""

    user: UserName
    limits: QuotaLimits
    """The limits in force."""
    own: QuotaLimits
    """The limits set for this user."""
    clusters: int
    """Clusters that the user has."""
    networks: int = 0
    """Networks that the user has."""
    guests: int = 0
    """Guests that the user has."""
    cpus: int = 0
    """Virtual processors of the user's guests."""
    memory_mb: int = 0
    """Memory of the user's guests in MiB."""
