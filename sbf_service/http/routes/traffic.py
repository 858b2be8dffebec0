"""The traffic of clusters: reports of agents, and the rates and counters that users see.

Hosts and gateways report the traffic of each cluster. Gateways also count the connections and bytes of destinations
outside the clusters.
"""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import (
    CurrentCaller,
    CurrentService,
    authorize_element,
    authorize_in_unit,
)
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.store.elements.leases import record_agent_heartbeat
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.networks import outside_uses, traffic
from virtcloud.model.outside_use import DestinationUseView, OutsideReport
from virtcloud.model.traffic import ElementTraffic, TrafficReport
from virtcloud.model.values import Name

PROBLEMS = problem_responses(404, 409, 422)

router = APIRouter(prefix="/v1", tags=["clusters"], route_class=Operation)


@router.get("/clusters/{key}/traffic", responses=PROBLEMS)
def list_traffic(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[ElementTraffic]:
    """List the traffic rates of the cluster's network at each host and gateway, from the last 31 reports.

    These are 15 minutes of reports, unless an agent did not report for some time.
    """
    with service.store.read() as unit:
        authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, id)
        return traffic.list_traffic(unit, key, id)


@router.put("/elements/{name}/traffic", status_code=HTTPStatus.NO_CONTENT, responses=PROBLEMS)
def report_traffic(name: Name, report: TrafficReport, caller: CurrentCaller, service: CurrentService) -> None:
    """Report a host's or gateway's traffic counters of all clusters.

    SBF ignores a report that comes less than 5 s after the previous report.
    """
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)
    with service.store.change_row(who=caller.who) as unit:
        increases = traffic.record_traffic(unit, name, report)
        site = require_element(unit, name).site
    service.metrics.record_traffic(site, increases)


@router.get("/clusters/{key}/outside", responses=PROBLEMS)
def list_destination_uses(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[DestinationUseView]:
    """List the outside destinations that the cluster's network used, with the counters of the network's gateways."""
    with service.store.read() as unit:
        authorize_in_unit(unit, caller, Action.READ_CLUSTER, key, id)
        return outside_uses.list_uses(unit, key, id)


@router.put("/elements/{name}/outside", status_code=HTTPStatus.NO_CONTENT, responses=PROBLEMS)
def report_destination_uses(name: Name, report: OutsideReport, caller: CurrentCaller, service: CurrentService) -> None:
    """Report a gateway's counters for all destinations of all networks; idempotent."""
    authorize_element(service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    record_agent_heartbeat(service.store, name)
    with service.store.change(who=caller.who) as unit:
        increases = outside_uses.record_uses(unit, name, report)
    for increase in increases:
        service.metrics.record_outside_use(name, increase.destination, increase.counters)
