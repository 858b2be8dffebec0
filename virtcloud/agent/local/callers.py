"""Who may ask what: root and those whom the settings name everything, a job's user to give up its own run."""

import pwd
from collections.abc import Callable
from dataclasses import dataclass

from virtcloud.agent.local.ledger import Ledger
from virtcloud.agent.local.requests import Cancel, Request
from virtcloud.model.errors import Forbidden

ROOT = 0


def user_number(name: str) -> int | None:
    """Give a user's number on this machine; None for one whom it does not know."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class Callers:
    """The rule; users are the numbers that the kernel gives of who connected."""

    uids: frozenset[int]
    ledger: Ledger
    number: Callable[[str], int | None] = user_number

    def is_trusted(self, uid: int) -> bool:
        """Say whether a user may ask everything."""
        return uid == ROOT or uid in self.uids

    def check(self, request: Request, uid: int) -> None:
        """Raise Forbidden unless this user may ask this.

        Who may delete a job may give its run up: a batch system says so as that user (Torque's epilogue.precancel).
        """
        if not self.is_trusted(uid) and not (isinstance(request, Cancel) and self._is_of(request, uid)):
            raise Forbidden(
                f"user number {uid} may not ask this agent: that takes root, or a number in its setting 'socket_uids' "
                "(and a job's user may cancel its own run)"
            )

    def _is_of(self, request: Cancel, uid: int) -> bool:
        job = self.ledger.get(request.cluster)
        return job is not None and (job.attempt, uid) == (request.attempt, self.number(job.user or ""))
