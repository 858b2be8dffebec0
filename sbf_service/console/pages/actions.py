"""The actions of the console: end a cluster, extend its lease, declare a VLAN ID clean, reconcile an element.

Each action calls the function of the API route with the same effect, which checks the right and writes the audit log. A
form for a cluster contains the cluster's ID, and a form for a VLAN ID contains the ID of the former cluster. The form
therefore never concerns a later cluster with the same key or VLAN ID.
"""

from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import Browser, CheckedForm, CurrentBrowser
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentService, authorize_cluster, describe_site
from sbf_service.http.long_polls import make_poll
from sbf_service.http.operations import parse_cluster_id
from sbf_service.http.routes import clusters, elements, sites
from sbf_service.http.routes.clusters import EarlierIdQuery, KeyPath
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, LeaseExtension
from virtcloud.model.durations import MAX_LEASE_S, parse_duration
from virtcloud.model.element_views import CleanDeclaration, QuarantinedVlan
from virtcloud.model.values import Name, VlanId

router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)


@router.get("/clusters/{key}/delete")
async def confirm_deletion(
    key: KeyPath,
    request: Request,
    service: CurrentService,
    browser: CurrentBrowser,
    id: EarlierIdQuery = None,  # noqa: A002 - the word of the API
) -> Response:
    """Ask whether a cluster shall end."""
    await run_in_threadpool(authorize_cluster, service.store, browser.caller, Action.END_CLUSTER, key, id)
    view = await clusters.wait_for_cluster(
        key, browser.caller, service, make_poll(service, request, browser.caller), cluster_id=id
    )
    return await run_in_threadpool(
        render, request, "delete.html", {"cluster": view, "is_running": view.state in WANTED_STATES}
    )


@router.post("/clusters/{key}/delete")
def delete_cluster(key: KeyPath, service: CurrentService, browser: CurrentBrowser, form: CheckedForm) -> Response:
    """Start to remove a cluster."""
    cluster_id = parse_cluster_id(form.get("id") or None)
    view = clusters.delete_cluster(key, Response(), browser.caller, service, None, None, cluster_id)
    done = "over" if view.state in ENDED_STATES else "ended"
    return RedirectResponse(f"{PREFIX}/clusters/{key}?id={view.id}&done={done}", HTTPStatus.SEE_OTHER)


@router.post("/clusters/{key}/lease")
def extend_lease(key: KeyPath, service: CurrentService, browser: CurrentBrowser, form: CheckedForm) -> Response:
    """Extend the lease of a cluster."""
    extension = LeaseExtension(seconds=parse_duration(form.get("duration"), MAX_LEASE_S))
    cluster_id = parse_cluster_id(form.get("id") or None)
    clusters.extend_lease(key, extension, browser.caller, service, None, None, cluster_id)
    return RedirectResponse(f"{PREFIX}/clusters/{key}?done=extended", HTTPStatus.SEE_OTHER)


@router.get("/sites/{name}/quarantine/{vlan}/clean")
def confirm_clean(
    name: Name, vlan: int, request: Request, service: CurrentService, browser: CurrentBrowser
) -> Response:
    """Ask for the reason why a VLAN ID is clean."""
    browser.caller.require(Action.DECLARE_CLEAN, describe_site(name))
    quarantined = _find_quarantined(name, vlan, service, browser)
    return render(request, "clean.html", {"site": name, "vlan": VlanId(vlan), "quarantined": quarantined})


def _find_quarantined(name: Name, vlan: int, service: SbfService, browser: Browser) -> QuarantinedVlan | None:
    view = sites.get_site(name, browser.caller, service)
    return next((one for one in view.quarantine if one.vlan == vlan), None)


@router.post("/sites/{name}/quarantine/{vlan}/clean")
def declare_clean(
    name: Name, vlan: int, service: CurrentService, browser: CurrentBrowser, form: CheckedForm
) -> Response:
    """Declare a VLAN ID clean."""
    declaration, cluster_id = CleanDeclaration(reason=form.get("reason")), parse_cluster_id(form.get("id") or None)
    done = "clean" if _find_quarantined(name, vlan, service, browser) else "unneeded"
    sites.declare_vlan_clean(name, VlanId(vlan), declaration, browser.caller, service, cluster_id)
    return RedirectResponse(f"{PREFIX}/sites/{name}?done={done}", HTTPStatus.SEE_OTHER)


@router.post("/elements/{name}/reconcile")
async def reconcile_element(
    name: Name, service: CurrentService, browser: CurrentBrowser, form: CheckedForm
) -> Response:
    """Read a device now, and apply the difference from the device's wanted state."""
    del form
    found = await elements.reconcile_element(name, browser.caller, service)
    is_read = found.element.reachable and found.element.trouble is None
    done = ("mended" if found.mended else "equal") if is_read else "unread"
    return RedirectResponse(f"{PREFIX}/elements/{name}?done={done}", HTTPStatus.SEE_OTHER)
