"""Whose guests a host runs, and who asked for a cluster: checked by SBF and again by the host's agent."""

from typing import Literal

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import UserName


class Origin(Document):
    """Where a cluster comes from: its owner, and whether a batch system asked for it."""

    owner: UserName
    batch: bool
    """Whether a batch system asked for the cluster."""


class Admits(Document):
    """Whose clusters a host takes part in: those of batch jobs, and those that users ask for themselves."""

    batch: bool = Field(default=True, description="`false`: no cluster of a batch job.")
    users: Literal["all"] | tuple[UserName, ...] = Field(
        "all",
        description='Users who may ask for clusters there themselves: `"all"`, or names; `[]` is batch jobs only.',
    )

    def allows(self, origin: Origin) -> bool:
        """Return whether a cluster of this origin may have a part here."""
        if origin.batch:
            return self.batch
        return self.users == "all" or origin.owner in self.users

    def __str__(self) -> str:
        """Return who is admitted, in words."""
        users = "all users" if self.users == "all" else f"users {', '.join(self.users)}" if self.users else ""
        return " and ".join(filter(None, ("batch jobs" if self.batch else "", users))) or "nobody"


EVERYBODY = Admits()
