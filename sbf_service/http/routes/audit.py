"""The audit log: pages of rows, the newest rows, and long polls for newer rows."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import AwareDatetime

from sbf_service.domain.rights import Action, ProtectedResource, RightScope, find_scope
from sbf_service.http.auth.authorization import (
    CurrentCaller,
    CurrentService,
    authorize_cluster,
    authorize_element,
    require_known_names,
)
from sbf_service.http.auth.caller import Caller
from sbf_service.http.long_polls import CurrentPoll
from sbf_service.http.operations import Operation, Wait
from sbf_service.http.pages import PAGES, CurrentPage, OrderQuery, PageCall, answer_list
from sbf_service.http.problems import problem_responses
from sbf_service.store.clusters.cluster_keys import has_owned_key
from sbf_service.store.maintenance.audit_log import (
    AuditFilter,
    check_period,
    find_newest_id,
    find_settled_id,
    read_entries,
    read_entry_page,
)
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.store import Store
from sbf_service.store.unit_of_work import AUDIT_TOPIC
from virtcloud.model.changes import AuditEntry
from virtcloud.model.errors import BadInput
from virtcloud.model.values import ClusterKey, Name

ElementQuery = Annotated[Name | None, Query(description="Only changes on this element.")]
ClusterQuery = Annotated[ClusterKey | None, Query(description="Only changes for clusters with this key.")]
RequestQuery = Annotated[
    str | None,
    Query(max_length=64, pattern=r"^[^\x00]*$", description="Only changes caused by the call with this request ID."),
]
AfterIdQuery = Annotated[
    int | None, Query(ge=0, lt=2**63, description="Only rows after this ID; if omitted, the newest rows.")
]
WhoQuery = Annotated[
    str | None, Query(max_length=200, pattern=r"^[^\x00]+$", description="Only changes by this caller.")
]
SinceQuery = Annotated[AwareDatetime | None, Query(description="Only rows from this time on.")]
UntilQuery = Annotated[AwareDatetime | None, Query(description="Only rows up to this time.")]

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=Operation)


@router.get("", response_model=list[AuditEntry], responses={**PAGES, **problem_responses(422)})
async def get_audit(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    caller: CurrentCaller,
    service: CurrentService,
    page: CurrentPage,
    poll: CurrentPoll,
    element: ElementQuery = None,
    cluster: ClusterQuery = None,
    after: AfterIdQuery = None,
    wait: Wait = 0,
    request_id: RequestQuery = None,
    who: WhoQuery = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    order: OrderQuery = None,
) -> Response:
    """Return rows of the audit log, or wait for newer rows.

    With `order`, the answer is a page of `limit` rows, sorted from the oldest or from the newest row. With `after`, the
    answer has the first rows after this ID. Otherwise, the answer has the newest rows, in the order of their times.
    """
    requested = AuditFilter(element, cluster, request=request_id, who=who, since=since, until=until)
    allowed = await run_in_threadpool(authorize_audit, service.store, caller, requested)
    if order is not None:
        return await run_in_threadpool(_answer_page, service.store, page, allowed, order)
    if page.cursor is not None:
        raise BadInput("cursor: expected 'order' with the cursor, got none: use the address in the Link header")
    read = partial(_read_entries, service.store, allowed, after, page.part.limit)
    read_newest_id = partial(_read_newest_id, service.store, allowed)
    await poll.wait_until_newer(AUDIT_TOPIC, poll.in_thread(read_newest_id), after, wait, is_exact=False)
    return answer_list(AuditEntry, [await poll.read(read)])


def _answer_page(store: Store, page: PageCall, allowed: AuditFilter, order: str) -> Response:
    newest = find_settled_id(store)

    def read(part: PagePart) -> Page[AuditEntry]:
        with store.read() as unit:
            return read_entry_page(unit, allowed, part, newest, newest_first=order == "newest")

    return page.answer_page(AuditEntry, read)


def _read_newest_id(store: Store, allowed: AuditFilter) -> int:
    with store.read() as unit:
        return find_newest_id(unit, allowed)


def _read_entries(store: Store, allowed: AuditFilter, after: int | None, limit: int) -> list[AuditEntry]:
    newest = find_settled_id(store, after)
    with store.read() as unit:
        return read_entries(unit, allowed, after, limit, newest)


def read_newest(store: Store, caller: Caller, requested: AuditFilter, limit: int) -> list[AuditEntry]:
    """Return the newest rows that the caller may read, oldest first. Raise the errors of :func:`authorize_audit`."""
    return _read_entries(store, authorize_audit(store, caller, requested), None, limit)


def authorize_audit(store: Store, caller: Caller, requested: AuditFilter) -> AuditFilter:
    """Return the requested filter, narrowed to the audit rows that the caller may read.

    Users may read rows about their own clusters; site administrators may read rows about their sites. If a key belonged
    to several clusters, select only the clusters that the caller may read. Raise Forbidden or NotFound as
    :func:`authorize_cluster` and :func:`authorize_element` do. Raise BadInput for a period that ends before it begins,
    or if the caller may read all elements and the element is unknown.
    """
    allowed = _narrow(store, caller, requested)
    require_known_names(store, caller, element=requested.element)
    check_period(requested)
    return allowed


def _narrow(store: Store, caller: Caller, requested: AuditFilter) -> AuditFilter:
    caller.require_for_any(Action.READ_AUDIT, "cluster or element")
    if caller.is_unrestricted(Action.READ_AUDIT):
        return requested
    if requested.cluster is not None and find_scope(caller.principal, Action.READ_AUDIT) is RightScope.OWN:
        return _narrow_to_owner(store, caller, requested, ClusterKey(requested.cluster))
    if requested.cluster is not None:
        authorize_cluster(store, caller, Action.READ_AUDIT, ClusterKey(requested.cluster))
        return replace(requested, sites=caller.principal.sites)
    if requested.element is not None:
        authorize_element(store, caller, Action.READ_AUDIT, Name(requested.element))
        return requested
    caller.require(Action.READ_AUDIT, ProtectedResource("all clusters and elements (name one cluster or one element)"))
    return requested


def _narrow_to_owner(store: Store, caller: Caller, requested: AuditFilter, key: ClusterKey) -> AuditFilter:
    owner = caller.principal.name
    with store.read() as unit:
        is_owner = has_owned_key(unit, key, owner)
    if not is_owner:
        authorize_cluster(store, caller, Action.READ_AUDIT, key)
    return replace(requested, owner=owner)
