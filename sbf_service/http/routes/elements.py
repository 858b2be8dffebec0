"""Elements: their views, differences and ports, and the calls by which agents fetch wanted states or send reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Annotated, cast

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource, may_read_secrets
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_element, require_known_names
from sbf_service.http.auth.caller import Caller
from sbf_service.http.entity_tags import make_wanted_etag, matches, not_modified
from sbf_service.http.long_polls import CurrentPoll
from sbf_service.http.operations import After, IfNoneMatch, Operation, Wait
from sbf_service.http.pages import PAGES, CurrentPage
from sbf_service.http.problems import problem_responses
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.store.clusters.capacity import record_capacity
from sbf_service.store.clusters.cluster_dry_run import compute_element_difference
from sbf_service.store.clusters.transitions import fail_refused_clusters
from sbf_service.store.elements import confirmations, elements, error_reports, unchecked_elements
from sbf_service.store.elements.agent_heartbeats import AgentElement
from sbf_service.store.elements.confirmations import confirmation_topic
from sbf_service.store.elements.leases import receive_heartbeat, record_agent_heartbeat
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.transactions.network_scopes import find_confirmation_scope
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.ports import adopt_ports as adopt_switch_ports
from sbf_service.store.vlans.ports import parse_removed_switch
from sbf_service.store.vlans.ports import release_ports as release_switch_ports
from virtcloud.model.access import Role
from virtcloud.model.changes import ElementDifference, ElementReconciliation
from virtcloud.model.element import ElementKind, Switch
from virtcloud.model.element_views import CleanDeclaration, ElementView
from virtcloud.model.errors import Conflict
from virtcloud.model.guest_seed import WITH_SECRETS
from virtcloud.model.port_use import PortAdoption, PortRelease, PortView
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation, ElementErrorReport, HostCapacity
from virtcloud.model.wanted import WantedDocument

AGENT_PROBLEMS = problem_responses(404, 409, 422)
RECONCILE_PROBLEMS = problem_responses(404, 409, 422, 503)
DEVICE_PROBLEMS = problem_responses(404, 409, 422, 503, 502, 504)

SiteQuery = Annotated[Name | None, Query(description="Only elements at this site.")]
KindQuery = Annotated[ElementKind | None, Query(description="Only elements of this kind.")]
TroubledQuery = Annotated[
    bool,
    Query(
        description="Only elements that need attention: elements that do not answer, that have an error or a pending "
        "save, or whose agent never called SBF."
    ),
]
ReadQuery = Annotated[bool, Query(description="Read the device now, instead of using its last observed state.")]

router = APIRouter(prefix="/v1/elements", tags=["elements"], route_class=Operation)


@router.get("", response_model=list[ElementView], responses={**PAGES, **problem_responses(422)})
def list_elements(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    caller: CurrentCaller,
    service: CurrentService,
    page: CurrentPage,
    site: SiteQuery = None,
    kind: KindQuery = None,
    troubled: TroubledQuery = False,
) -> Response:
    """List elements with their revisions, by name."""
    caller.require(Action.READ_ELEMENT, ProtectedResource("all elements"))
    require_known_names(service.store, caller, site)
    selected = elements.ElementFilter(site, kind, troubled)

    def read(part: PagePart) -> Page[ElementView]:
        with service.store.read() as unit:
            return elements.read_element_page(unit, selected, part)

    return page.answer(ElementView, read)


@router.get("/{name}", responses=problem_responses(404, 422))
def get_element(name: Name, caller: CurrentCaller, service: CurrentService) -> ElementView:
    """Return an element."""
    authorize_element(service.store, caller, Action.READ_ELEMENT, name)
    with service.store.read() as unit:
        return elements.make_element_view(unit, name)


@router.get(
    "/{name}/wanted",
    response_model=WantedDocument,
    responses={
        304: {"description": "The document has not changed since the answer with this `ETag`"},
        **AGENT_PROBLEMS,
    },
)
async def get_wanted(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    caller: CurrentCaller,
    service: CurrentService,
    poll: CurrentPoll,
    after: After = None,
    wait: Wait = 0,
    known: IfNoneMatch = None,
) -> Response:
    """Return the wanted state of a host or gateway, or wait for a newer revision of the wanted state.

    The element's agent, and root and the service's user on SBF's machine, receive the secrets of guests. Other callers
    receive asterisks, and their calls are no heartbeats of the agent. If the agent has confirmed the whole revision,
    the `ETag` contains the revision and SBF's version. With this `ETag` in `If-None-Match`, the answer is 304 without a
    body while nothing changes.
    """
    if caller.principal.role is Role.AGENT:
        authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)  # reads no database
        wait = min(wait, service.heartbeats.max_wait)
    else:
        await run_in_threadpool(authorize_element, service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    element: AgentElement | None = None
    is_agent = may_read_secrets(caller.principal)

    async def read_revision() -> int:
        nonlocal element
        element = await (poll.read_element(name) if is_agent else poll.read(partial(service.heartbeats.find, name)))
        return element.revision

    def read_document() -> Response:
        if element is None:
            (service.heartbeats.receive if is_agent else service.heartbeats.find)(name)
        with service.store.read() as unit:
            document = elements.make_wanted_document(unit, name)
        return _respond(document, may_read_secrets=is_agent)

    others = (confirmation_topic(name),)
    is_newer = await poll.wait_until_newer(f"element:{name}", read_revision, after, wait, uncompared=others)
    if not is_newer and element is not None and element.is_settled:
        etag = make_wanted_etag(element.revision)
        if matches(known, etag):
            return not_modified({"etag": etag})
    return await poll.read(read_document)


def _respond(document: WantedDocument, *, may_read_secrets: bool) -> Response:
    """Return the response with a wanted document.

    The response has an entity tag if only a new revision or SBF version can change the document.
    """
    is_settled = document.confirmed_revision == document.revision and not (document.incomplete or document.calls)
    headers = {"etag": make_wanted_etag(document.revision)} if is_settled else {}
    content = document.model_dump_json(context=WITH_SECRETS if may_read_secrets else None)
    return Response(content, media_type="application/json", headers=headers)


@router.post("/{name}/confirmed", status_code=HTTPStatus.NO_CONTENT, responses=AGENT_PROBLEMS)
def confirm_element(name: Name, confirmation: Confirmation, caller: CurrentCaller, service: CurrentService) -> None:
    """Confirm that a host or gateway has the wanted state of a revision, except for the clusters that the body names.

    The body names incomplete clusters, and clusters that the agent could not remove.
    """
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)

    def confirm(unit: Unit) -> None:
        receive_heartbeat(unit, name)
        errors = error_reports.describe_excluded_clusters(unit, name, confirmation)
        confirmations.confirm_revision(unit, name, confirmation.revision, service.settings.timing.drain, errors=errors)

    has_errors = bool(confirmation.incomplete or confirmation.remaining)
    find_scope = partial(find_confirmation_scope, name=name, revision=confirmation.revision, has_errors=has_errors)
    service.store.change_scope(find_scope, confirm, who=caller.who)


@router.post("/{name}/trouble", status_code=HTTPStatus.NO_CONTENT, responses=AGENT_PROBLEMS)
def report_trouble(name: Name, report: ElementErrorReport, caller: CurrentCaller, service: CurrentService) -> None:
    """Report why an agent cannot apply the wanted state of a revision to a host or gateway."""
    drain = service.settings.timing.drain
    with _change_by_agent(service, caller, name) as unit:
        error_reports.record_agent_error(unit, name, report.message, report.clusters, drain)
        fail_refused_clusters(unit, name, report.refused, drain)


@router.post("/{name}/drifted", status_code=HTTPStatus.NO_CONTENT, responses=AGENT_PROBLEMS)
def report_drift(name: Name, confirmation: Confirmation, caller: CurrentCaller, service: CurrentService) -> None:
    """Report that a host or gateway differs from the revision that it confirmed."""
    with _change_by_agent(service, caller, name) as unit:
        reason = f"the agent found a difference from revision {confirmation.revision}"
        confirmations.reset_confirmation(unit, name, reason, service.settings.timing.drain)


@contextmanager
def _change_by_agent(service: SbfService, caller: Caller, name: Name) -> Iterator[Unit]:
    _record_agent_call(service, caller, name)
    with service.store.change(who=caller.who) as unit:
        yield unit


def _record_agent_call(service: SbfService, caller: Caller, name: Name) -> None:
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)


@router.put("/{name}/capacity", status_code=HTTPStatus.NO_CONTENT, responses=AGENT_PROBLEMS)
def report_capacity(name: Name, capacity: HostCapacity, caller: CurrentCaller, service: CurrentService) -> None:
    """Report the processors and the memory of a host; idempotent."""
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)
    with service.store.change_row(who=caller.who) as unit:
        record_capacity(unit, name, capacity)


@router.get("/{name}/difference", responses=DEVICE_PROBLEMS)
async def get_difference(
    name: Name, caller: CurrentCaller, service: CurrentService, read: ReadQuery = False
) -> ElementDifference:
    """Return the difference between an element's observed and wanted state; changes nothing."""
    await run_in_threadpool(authorize_element, service.store, caller, Action.COMPARE_ELEMENT, name)
    if read:
        caller.count_device_read()
        return await service.device_threads.run(partial(_reader(service).difference, name))

    def read_difference() -> ElementDifference:
        with service.store.read() as unit:
            return compute_element_difference(unit, name)

    return await run_in_threadpool(read_difference)


@router.post("/{name}/check", include_in_schema=False)  # the path in version 0.1, for clients of that version
@router.post("/{name}/reconcile", responses=RECONCILE_PROBLEMS)
async def reconcile_element(name: Name, caller: CurrentCaller, service: CurrentService) -> ElementReconciliation:
    """Read a switch or provider edge now, and change whatever differs from its wanted state."""
    await run_in_threadpool(authorize_element, service.store, caller, Action.RECONCILE_ELEMENT, name)
    caller.count_device_read()
    return await service.device_threads.run(partial(_reader(service).reconcile, name))


@router.post("/{name}/clean", responses=problem_responses(404, 409, 422))
def declare_element_clean(
    name: Name, declaration: CleanDeclaration, caller: CurrentCaller, service: CurrentService
) -> ElementView:
    """Declare, with a reason, that nobody needs the clusters on an element that are missing in the database."""
    authorize_element(service.store, caller, Action.DECLARE_CLEAN, name)
    with service.store.change(who=caller.who) as unit:
        unchecked_elements.declare_element_clean(unit, name, declaration.reason)
        return elements.make_element_view(unit, name)


@router.get("/{name}/ports", responses=DEVICE_PROBLEMS)
async def list_ports(name: Name, caller: CurrentCaller, service: CurrentService) -> tuple[PortView, ...]:
    """Read a switch now and list its managed ports with their uses; changes nothing."""
    await run_in_threadpool(authorize_element, service.store, caller, Action.COMPARE_ELEMENT, name)
    caller.count_device_read()
    return await service.device_threads.run(partial(_reader(service).ports, name))


def _reader(service: SbfService) -> OnDemandReader:
    return OnDemandReader(service.store, service.scheduler)


@router.post("/{name}/ports/adopt", status_code=HTTPStatus.NO_CONTENT, responses=RECONCILE_PROBLEMS)
def adopt_ports(name: Name, adoption: PortAdoption, caller: CurrentCaller, service: CurrentService) -> None:
    """Allow SBF to manage a switch's ports, although these ports have a configuration that SBF did not make."""
    authorize_element(service.store, caller, Action.ADOPT_PORT, name)
    with service.store.change(who=caller.who) as unit:
        adopt_switch_ports(unit, _require_switch(unit, name), adoption.ports)


@router.post("/{name}/ports/release", status_code=HTTPStatus.NO_CONTENT, responses=RECONCILE_PROBLEMS)
def release_ports(name: Name, release: PortRelease, caller: CurrentCaller, service: CurrentService) -> None:
    """Release a switch's adopted ports. SBF restores the configuration that the ports had before the adoption."""
    authorize_element(service.store, caller, Action.ADOPT_PORT, name)
    with service.store.change(who=caller.who) as unit:
        removed = parse_removed_switch(require_element(unit, name))
        if removed is not None:
            release_switch_ports(unit, removed, SwitchWanted(ports={}), release)
            return
        switch = _require_switch(unit, name)
        wanted = cast("SwitchWanted", elements.read_wanted_revision(unit, name).wanted)
        release_switch_ports(unit, switch, wanted, release)


def _require_switch(unit: Unit, name: Name) -> Switch:
    element = read_topology(unit).element(name)
    if not isinstance(element, Switch):
        raise Conflict(f"{name} is not a switch: only ports of switches can be adopted")
    return element
