"""Sites: their pools, quarantine, cable checks and preparation."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.page_cursors import MAX_PAGE
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, describe_site
from sbf_service.http.auth.caller import Caller
from sbf_service.http.entity_tags import make_etag
from sbf_service.http.operations import CLUSTER_ID, Operation, OptionalIfMatch, check_if_match, hash_document
from sbf_service.http.pages import PAGES, CurrentPage, answer_list
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.topology import dry_run_setting
from sbf_service.preparation.sheets import BackboneDevice, make_sheets
from sbf_service.reconcile.on_demand import CableChecker
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.vlans.pools import make_site_view, make_site_views, read_pool, read_site_page
from sbf_service.store.vlans.pools import put_pool as put_site_pool
from sbf_service.store.vlans.quarantine import declare_clean
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.element_views import CleanDeclaration, Pool, SiteView
from virtcloud.model.site import SiteCables, SitePreparation
from virtcloud.model.values import Name, PortName, VlanId

PlatformQuery = Annotated[str | None, Query(description="The platform of the backbone's device.")]
PortQuery = Annotated[PortName | None, Query(description="The backbone's port that the site is attached to.")]
CorePortQuery = Annotated[
    PortName | None, Query(description="The port of the backbone's device towards the rest of the backbone.")
]
TransportQuery = Annotated[Name | None, Query(description="Return the commands for this transport only.")]
QuarantinedQuery = Annotated[
    str | None,
    Query(pattern=CLUSTER_ID, description="The ID of the quarantined cluster; 409 if another cluster has the VLAN ID."),
]

router = APIRouter(prefix="/v1/sites", tags=["sites"], route_class=Operation)


@router.get("", response_model=list[SiteView], responses={**PAGES, **problem_responses(404, 422)})
def list_sites(caller: CurrentCaller, service: CurrentService, page: CurrentPage) -> Response:
    """List sites with their pools' state, sorted by name if pages are requested, else in the topology's order."""
    caller.require(Action.READ_SITES)

    def read(part: PagePart) -> Page[SiteView]:
        with service.store.read() as unit:
            found = read_site_page(unit, part, service.reserved)
        return found.convert(lambda views: [_hide_use(view, caller) for view in views])

    if page.wants_page:
        return page.answer_page(SiteView, read)
    return answer_list(SiteView, read_all_sites(caller, service))


def read_all_sites(caller: Caller, service: SbfService) -> Iterator[list[SiteView]]:
    """Yield the views of all sites in lists of at most `MAX_PAGE` views, in the order of the topology.

    Each list is read in its own transaction.
    """
    with service.store.read() as unit:
        sites = read_topology(unit).sites
    for start in range(0, len(sites), MAX_PAGE):
        with service.store.read() as unit:
            views = make_site_views(unit, sites[start : start + MAX_PAGE], service.reserved)
        yield [_hide_use(view, caller) for view in views]


@router.get("/{name}", responses=problem_responses(404, 422))
def get_site(name: Name, caller: CurrentCaller, service: CurrentService) -> SiteView:
    """Return a site with the state of its pool."""
    caller.require(Action.READ_SITES)
    with service.store.read() as unit:
        return _hide_use(make_site_view(unit, read_topology(unit).site(name), service.reserved), caller)


def _hide_use(view: SiteView, caller: Caller) -> SiteView:
    may_read = is_allowed(caller.principal, Action.READ_QUARANTINE, describe_site(view.name))
    return view if may_read else view.model_copy(update={"quarantine": (), "other_use": ()})


@router.post("/{name}/quarantine/{vlan}/clean", operation_id="say_clean", responses=problem_responses(404, 409, 422))
def declare_vlan_clean(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    vlan: VlanId,
    declaration: CleanDeclaration,
    caller: CurrentCaller,
    service: CurrentService,
    cluster_id: QuarantinedQuery = None,
) -> SiteView:
    """Declare, with a reason, that a quarantined VLAN ID is clean at a site; the audit log records the caller."""
    caller.require(Action.DECLARE_CLEAN, describe_site(name))
    with service.store.change(who=caller.who) as unit:
        site = read_topology(unit).site(name)
        declare_clean(unit, name, vlan, declaration.reason, service.settings.timing.drain, cluster_id)
        return make_site_view(unit, site, service.reserved)


@router.put("/{name}/pool", responses=problem_responses(404, 409, 412, 422))
def put_pool(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    pool: Pool,
    caller: CurrentCaller,
    service: CurrentService,
    response: Response,
    if_match: OptionalIfMatch = None,
) -> Pool:
    """Set the pool of a site: the VLAN IDs that SBF may allocate to clusters at this site."""
    caller.require(Action.SET_POOL, describe_site(name))
    with service.store.change(who=caller.who) as unit:
        former = read_pool(unit, name)
        if if_match is not None and former != pool:
            check_if_match(if_match, hash_document(former), f"the pool of site {name}")
        put_site_pool(unit, name, pool, service.reserved)
    response.headers["etag"] = make_etag(hash_document(pool))
    return pool


@router.get("/{name}/pool", responses=problem_responses(404, 422))
def get_pool(name: Name, caller: CurrentCaller, service: CurrentService, response: Response) -> Pool:
    """Return the pool of a site; `ETag` is its version."""
    caller.require(Action.READ_SITES)
    with service.store.read() as unit:
        pool = read_pool(unit, name)
    response.headers["etag"] = make_etag(hash_document(pool))
    return pool


@router.post("/{name}/pool/dry-run", responses=problem_responses(404, 409, 422, 503))
async def preview_pool(name: Name, pool: Pool, caller: CurrentCaller, service: CurrentService) -> ChangeDryRun:
    """Read a site's switches and edges and return what a new pool would change; changes nothing."""
    caller.require(Action.SET_POOL, describe_site(name))
    caller.count_device_read()
    return await dry_run_setting(service, partial(put_site_pool, name=name, pool=pool, reserved=service.reserved))


@router.post("/{name}/verify", responses=problem_responses(404, 422, 503))
async def verify_site(name: Name, caller: CurrentCaller, service: CurrentService) -> SiteCables:
    """Read the neighbours of a site's switches and compare the site's cables with the topology; changes nothing."""
    caller.require(Action.VERIFY_SITE, describe_site(name))
    caller.count_device_read()
    checker = CableChecker(service.store, service.scheduler, service.platforms.of_switch, service.device_threads)
    plan = await run_in_threadpool(checker.plan, name)
    return plan.compare(*await checker.read_neighbours(plan))


@router.get("/{name}/preparation", responses=problem_responses(404, 409, 422))
def get_preparation(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    caller: CurrentCaller,
    service: CurrentService,
    platform: PlatformQuery = None,
    port: PortQuery = None,
    core_port: CorePortQuery = None,
    transport: TransportQuery = None,
) -> SitePreparation:
    """Return the one-time configuration of a site's uplinks and of the backbone, as text; changes nothing."""
    caller.require(Action.READ_TOPOLOGY)
    with service.store.read() as unit:
        topology = read_topology(unit)
        site = topology.site(name)
        vlans = make_site_view(unit, site, service.reserved).pool
    return make_sheets(topology, site, vlans, BackboneDevice(platform, port, core_port, transport))
