"""Who calls. Pure."""

from dataclasses import dataclass, field

from virtcloud.model.access import Identity, Role, TokenId
from virtcloud.model.values import Name

MACHINES = frozenset({Role.AGENT, Role.SCHEDULER, Role.JOB_STARTER})


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whom the service knows. ``sites`` are a site administrator's; ``token`` is the id of the token used."""

    name: str
    role: Role
    sites: frozenset[Name] = field(default_factory=frozenset)
    token: TokenId | None = None

    @property
    def who(self) -> str:
        """The name for the audit log: people by their names, machines with their role (``agent@brno-h1``)."""
        return f"{self.role}@{self.name}" if self.role in MACHINES else self.name

    def __str__(self) -> str:
        """Say name and role: ``alice (user)``."""
        return f"{self.name} ({self.role})"

    @property
    def identity(self) -> Identity:
        """The principal as a document."""
        return Identity(name=self.name, role=self.role, sites=tuple(sorted(self.sites)), token=self.token)
