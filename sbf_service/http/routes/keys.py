"""Public SSH keys of users."""

from http import HTTPStatus

from fastapi import APIRouter, Response

from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store.users import user_keys
from virtcloud.model.ssh_keys import KeyFingerprint, NewUserKey, UserKeyView
from virtcloud.model.values import UserName

log = get_log(__name__)
router = APIRouter(prefix="/v1/users/{user}/keys", tags=["access"], route_class=Operation)


@router.get("", responses=problem_responses(422))
def list_keys(user: UserName, caller: CurrentCaller, service: CurrentService) -> list[UserKeyView]:
    """List a user's public SSH keys, oldest first."""
    caller.require(Action.READ_KEYS, ProtectedResource.of_user(user))
    with service.store.read() as unit:
        return user_keys.list_user_keys(unit, user)


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses={200: {"model": UserKeyView, "description": "The user has this key already"}, **problem_responses(422)},
)
def add_key(
    user: UserName, new: NewUserKey, response: Response, caller: CurrentCaller, service: CurrentService
) -> UserKeyView:
    """Add a public SSH key to a user's keys; idempotent. Clusters that exist already do not get the key."""
    caller.require(Action.CHANGE_KEYS, ProtectedResource.of_user(user))
    with service.store.change(who=caller.who) as unit:
        view, created = user_keys.add_user_key(unit, user, new.key, service.settings.limits)
    if created:
        log.info("key_added", user=user, fingerprint=view.fingerprint, by=caller.who)
    else:
        response.status_code = HTTPStatus.OK
    return view


@router.delete("/{fingerprint:path}", responses=problem_responses(404, 422))
def remove_key(
    user: UserName, fingerprint: KeyFingerprint, caller: CurrentCaller, service: CurrentService
) -> UserKeyView:
    """Remove a public SSH key from a user's keys. Guests that were created with the key continue to accept the key."""
    caller.require(Action.CHANGE_KEYS, ProtectedResource.of_user(user))
    with service.store.change(who=caller.who) as unit:
        view = user_keys.remove_user_key(unit, user, fingerprint)
    log.info("key_removed", user=user, fingerprint=fingerprint, by=caller.who)
    return view
