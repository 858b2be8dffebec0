"""Managed ports of switches: how each is used, and giving ports in other use to SBF or taking them back."""

from functools import partial
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, authorize_element
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.differences import FROM_DEVICE, NOT_READ
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.store.elements import read_wanted_revision
from sbf_service.store.ports import adopt_ports, parse_removed_switch, release_ports
from sbf_service.store.revisions import require_element
from sbf_service.store.unit_of_work import Unit, read_topology
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict
from virtcloud.model.port_use import PortAdoption, PortRelease, PortView
from virtcloud.model.values import Name
from virtcloud.model.wanted import SwitchWanted


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/elements", tags=["elements"])
    looking = OnDemandReader(service.store, service.converger)

    @router.get(
        "/{name}/ports",
        operation_id="list_ports",
        summary="Read a switch now and list its managed ports with their uses; changes nothing",
        responses=problem_responses(*NOT_READ, *FROM_DEVICE),
    )
    async def show(name: Name, caller: CurrentCaller) -> tuple[PortView, ...]:
        await run_in_threadpool(authorize_element, service.store, caller, Action.COMPARE_ELEMENT, name)
        caller.may_read_devices_now()
        return await service.device_threads.run(partial(looking.ports, name))

    @router.post(
        "/{name}/ports/adopt",
        operation_id="adopt_ports",
        summary="Give ports of a switch to SBF that are in other use",
        status_code=HTTPStatus.NO_CONTENT,
        responses=problem_responses(*NOT_READ),
    )
    def adopt(name: Name, adoption: PortAdoption, caller: CurrentCaller) -> None:
        authorize_element(service.store, caller, Action.ADOPT_PORT, name)
        with service.store.change(who=caller.who) as unit:
            adopt_ports(unit, _switch(unit, name), adoption.ports)

    @router.post(
        "/{name}/ports/release",
        operation_id="release_ports",
        summary="Take ports of a switch back from SBF; what was there before is put back",
        status_code=HTTPStatus.NO_CONTENT,
        responses=problem_responses(*NOT_READ),
    )
    def release(name: Name, asked: PortRelease, caller: CurrentCaller) -> None:
        authorize_element(service.store, caller, Action.ADOPT_PORT, name)
        with service.store.change(who=caller.who) as unit:
            left = parse_removed_switch(require_element(unit, name))
            if left is not None:
                release_ports(unit, left, SwitchWanted(ports={}), asked)
                return
            wanted = read_wanted_revision(unit, name).wanted
            if not isinstance(wanted, SwitchWanted):
                raise Conflict(f"{name} is no switch: only ports of switches are released")
            release_ports(unit, _switch(unit, name), wanted, asked)

    return router


def _switch(unit: Unit, name: Name) -> Switch:
    found = read_topology(unit).element(name)
    if not isinstance(found, Switch):
        raise Conflict(f"{name} is no switch: only ports of switches are adopted")
    return found
