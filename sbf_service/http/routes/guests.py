"""Guests of clusters: list them, and stop, start and reset them."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool

from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_in_unit
from sbf_service.http.auth.caller import Caller
from sbf_service.http.long_polls import CurrentPoll
from sbf_service.http.operations import After, Operation, Wait
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.store.clusters import guest_power
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.elements.confirmations import confirmation_topic
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.guests import GuestPowerRequest, GuestView
from virtcloud.model.values import ClusterKey, Name

GuestPath = Annotated[Name, Path(description="The guest's name in the cluster's spec.")]
PROBLEMS = problem_responses(404, 409, 422)

router = APIRouter(prefix="/v1/clusters/{key}/guests", tags=["clusters"], route_class=Operation)


@router.get("", responses=PROBLEMS)
def list_guests(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[GuestView]:
    """List the guests of a cluster with their wanted power states."""
    with service.store.read() as unit:
        authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, id)
        return guest_power.list_guests(unit, key, id)


@router.get("/{guest}", responses=PROBLEMS)
async def get_guest(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    guest: GuestPath,
    caller: CurrentCaller,
    service: CurrentService,
    poll: CurrentPoll,
    after: After = None,
    wait: Wait = 0,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> GuestView:
    """Return a guest; with ``after``, first wait until the guest's host has confirmed a revision above ``after``."""

    def read() -> tuple[GuestView, int]:
        """Return the guest and the confirmed revision of its host.

        Check the caller's right each time: after a wait, a cluster of another owner can have this key.
        """
        with service.store.read() as unit:
            authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, id)
            found = guest_power.get_guest(unit, key, guest, id)
            return found, require_element(unit, found.host).confirmed_revision

    view, _ = await run_in_threadpool(read)
    topic = confirmation_topic(view.host)

    def read_confirmed() -> int:
        nonlocal view
        view, confirmed = read()
        return confirmed

    def is_awaited() -> bool:
        """Return whether ``after`` is None, or the host is reachable and ``view.confirmed_revision`` exceeds ``after``.

        The host may have confirmed a higher revision from which it excluded the guest's cluster.
        """
        return after is None or (view.reachable and view.confirmed_revision > after)

    await poll.wait_until_newer(topic, poll.in_thread(read_confirmed), after, wait, is_awaited=is_awaited)
    return (await poll.read(read))[0]


@router.put("/{guest}/power", responses=PROBLEMS)
def put_guest_power(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    guest: GuestPath,
    request: GuestPowerRequest,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> GuestView:
    """Stop, start or reset a guest; idempotent. The guest's disk stays."""
    caller.require_for_any(Action.CONTROL_GUEST, "guest")
    with service.store.change(who=caller.who) as unit:
        authorize_guest(unit, caller, Action.CONTROL_GUEST, key, guest, id)
        return guest_power.set_guest_power(unit, key, guest, request, id)


def authorize_guest(  # noqa: PLR0913, PLR0917 - the call
    unit: Unit, caller: Caller, action: Action, key: ClusterKey, guest: Name, cluster_id: str | None = None
) -> GuestView:
    """Return a guest, after checking the caller's right to ``action`` on the guest.

    A site administrator has the right for guests on hosts of the site. Raise Forbidden or NotFound as
    :func:`authorize_cluster` does, and Forbidden for a caller who may only read the cluster.
    """
    authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, cluster_id)
    view = guest_power.get_guest(unit, key, guest, cluster_id)
    site = Name(require_element(unit, view.host).site)
    owner = require_cluster(unit, key, cluster_id).owner
    description = f"guest {guest} of cluster {key}"
    caller.require(action, ProtectedResource(description, owner, frozenset({site}), frozenset({view.host})))
    return view
