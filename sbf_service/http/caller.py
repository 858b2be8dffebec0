"""The caller of a route: who it is, and whether it may do what it asks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sbf_service.access.principal import Principal
from sbf_service.access.rights import WHOLE, Action, Reach, Subject, may, reach, refusal
from sbf_service.log import get_log
from sbf_service.meters import Meters
from sbf_service.throttle import Throttle
from virtcloud.model.errors import Forbidden, TooManyRequests, VirtcloudError

KEY = "virtcloud.caller"
log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and from where."""

    principal: Principal
    address: str
    meters: Meters
    throttle: Throttle

    @property
    def who(self) -> str:
        """The name for the audit log."""
        return self.principal.who

    def must(self, action: Action, subject: Subject = WHOLE) -> None:
        """Raise Forbidden unless the caller may do this."""
        if not may(self.principal, action, subject):
            raise self.denied(Forbidden(refusal(self.principal, action, subject)), action, subject)

    def must_somehow(self, action: Action, kind: str) -> None:
        """Raise Forbidden if the caller may not do this to any of a kind: asked before anything is looked up."""
        if reach(self.principal, action) is None:
            self.must(action, Subject(f"any {kind}"))

    def reaches_all(self, action: Action) -> bool:
        """Say whether the caller may do this whatever it is about."""
        return reach(self.principal, action) is Reach.ALL

    def sees(self, owner: str) -> bool:
        """Say whether the caller may know of this owner's clusters."""
        return may(self.principal, Action.READ_CLUSTER, Subject(owner=owner))

    def may_create_now(self) -> None:
        """Raise TooManyRequests for a user who asks for clusters too often."""
        with self._counted():
            self.throttle.create_cluster(self.principal)

    def may_read_devices_now(self) -> None:
        """Raise TooManyRequests for a caller who has devices read too often."""
        with self._counted():
            self.throttle.read_device(self.principal)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except TooManyRequests as error:
            self.meters.denied(error.slug)
            log.warning("throttled", who=self.who, why=error)
            raise

    def denied(self, error: VirtcloudError, action: Action, subject: Subject) -> VirtcloudError:
        """Log and count that the caller was denied something; gives the error that says so."""
        self.meters.denied(error.slug)
        log.warning("denied", who=self.who, action=action.name.lower(), subject=subject.words, address=self.address)
        return error


BEARER = HTTPBearer(
    scheme_name="token",
    description="A token that `virtcloud token create` made. Root and the service's own user need none on its socket.",
    auto_error=False,
)
"""For the description of the API; the gate before the routes is what reads the token."""


async def _caller(
    request: Request, _shown: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None
) -> Caller:
    """Give the caller; ``async``, since a plain function would be called in another thread."""
    found: Caller = request.scope[KEY]
    return found


Who = Annotated[Caller, Depends(_caller)]
"""A route's argument of this type is its caller; every route that is not open has one."""
