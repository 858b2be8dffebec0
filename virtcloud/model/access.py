"""Whose guests a host runs, and who asked for a cluster: checked by SBF and again by the host's agent.

Who may reach SBF: roles, tokens, and how much one user may have.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, UserName


class ClusterOrigin(Document):
    """Where a cluster comes from: its owner, and whether a batch system asked for it."""

    owner: UserName
    batch: bool
    """Whether a batch system asked for the cluster."""


class AdmissionRule(Document):
    """Whose clusters a host takes part in: those of batch jobs, and those that users ask for themselves."""

    batch: bool = Field(default=True, description="`false`: no cluster of a batch job.")
    users: Literal["all"] | tuple[UserName, ...] = Field(
        "all",
        description='Users who may ask for clusters there themselves: `"all"`, or names; `[]` is batch jobs only.',
    )

    def allows(self, origin: ClusterOrigin) -> bool:
        """Return whether a cluster of this origin may have a part here."""
        if origin.batch:
            return self.batch
        return self.users == "all" or origin.owner in self.users

    def __str__(self) -> str:
        """Return who is admitted, in words."""
        users = "all users" if self.users == "all" else f"users {', '.join(self.users)}" if self.users else ""
        return " and ".join(filter(None, ("batch jobs" if self.batch else "", users))) or "nobody"


ADMIT_EVERYBODY = AdmissionRule()


class Role(StrEnum):
    """What somebody is to the service; ``docs/how-to/give-access.md`` says what each may do."""

    USER = "user"
    SITE_ADMINISTRATOR = "site-administrator"
    OPERATOR = "operator"
    AGENT = "agent"
    SCHEDULER = "scheduler"
    JOB_STARTER = "job-starter"


class TokenId(PatternText):
    """The part of a token that is no secret: by it a token is listed and revoked."""

    __slots__ = ()
    pattern = r"[a-z2-7]{8}"
    meaning = "a token's id: eight characters, lower case or 2 to 7"


TokenSeconds = Annotated[float, Field(gt=0, le=10 * 366 * 86400)]


class TokenRequest(Document):
    """A call that wants a token.

    ``name`` is the user's, the administrator's or the scheduler's; an agent's or a job starter's is its element's.
    ``sites`` are a site administrator's. Without ``expires_in_s`` it is valid until it is revoked.
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
    """A token as it is kept: everything but the token itself. ``last_used_at`` is right to the hour."""

    id: TokenId
    name: UserName
    role: Role
    """The role."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    created_at: datetime
    """When the token was created."""
    created_by: str
    """Who created it."""
    expires_at: datetime | None = None
    """When it becomes invalid; null for no end."""
    revoked_at: datetime | None = None
    """When it was revoked."""
    last_used_at: datetime | None = None
    """When it was last shown, to the hour."""


class NewToken(TokenView):
    """A token that was just made. ``token`` is shown this once, and kept nowhere."""

    token: str
    """The token itself, shown this once."""


class Identity(Document):
    """Whom SBF takes the caller for; ``token`` is the id of the token, if one was used."""

    name: str
    """Name of the caller."""
    role: Role
    """Role of the caller."""
    sites: tuple[Name, ...] = ()
    """Sites of a site administrator."""
    token: TokenId | None = None
    """Id of the token that was shown; null for a local user."""


Amount = Annotated[int, Field(ge=0, le=10**12)]


class QuotaLimits(Document):
    """What one user may have at once, over all clusters of that user, and how large and long one cluster may be.

    What is not given is not limited here: for a user the service's settings decide then.
    """

    clusters: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="How many clusters a user may have at once; not limited unless given."
    )
    sites: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="How many sites one cluster may have; not limited unless given."
    )
    lease_s: Annotated[float, Field(gt=0, le=100 * 366 * 86400)] | None = Field(
        None,
        description="Seconds that a cluster may last, with all its extensions; not limited unless given.",
    )
    networks: Amount | None = Field(
        None, description="How many networks a user may have at once; clusters that join one count with that one."
    )
    guests: Amount | None = Field(
        None, description="How many guests a user may have at once; not limited unless given."
    )
    cpus: Amount | None = Field(None, description="How many CPUs a user's guests may have; not limited unless given.")
    memory_mb: Amount | None = Field(
        None, description="MiB of memory that a user's guests may have; not limited unless given."
    )


class QuotaView(Document):
    """A user's quota: ``limits`` are what counts, ``own`` what was set for this user; the rest is there now."""

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
