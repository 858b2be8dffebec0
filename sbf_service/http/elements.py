"""Elements: how far they are, and the agents' side: fetch what is wanted, confirm it."""

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.access.rights import Action, Subject
from sbf_service.http.caller import Who
from sbf_service.http.poll import After, Wait, newer
from sbf_service.http.problems import answers
from sbf_service.http.subjects import must_on_element
from sbf_service.service import Service
from sbf_service.store import elements
from sbf_service.store.refusals import fail_refused
from sbf_service.store.revisions import element_row
from sbf_service.store.silence import heard
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation, ElementView, Trouble
from virtcloud.model.wanted import WantedDocument

NOT_OURS = answers(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/elements", tags=["elements"])
    drain = service.settings.timing.drain

    @router.get("", operation_id="list_elements", summary="List elements with their revisions")
    def show_all(caller: Who) -> list[ElementView]:
        caller.must(Action.READ_ELEMENT, Subject("all elements"))
        with service.store.read() as unit:
            return elements.element_views(unit)

    @router.get(
        "/{name}",
        operation_id="get_element",
        summary="Look at an element",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: Who) -> ElementView:
        must_on_element(service.store, caller, Action.READ_ELEMENT, name)
        with service.store.read() as unit:
            return elements.element_view(unit, name)

    @router.get(
        "/{name}/wanted",
        operation_id="get_wanted",
        summary="Fetch what a host or gateway must carry, or wait for a newer revision of it",
        responses=NOT_OURS,
    )
    async def get_wanted(name: Name, caller: Who, after: After = None, wait: Wait = 0) -> WantedDocument:
        must_on_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)

        def revision() -> int:
            with service.store.read() as unit:
                return element_row(unit, name).wanted_revision

        def show() -> WantedDocument:
            heard(service.store, name)
            with service.store.read() as unit:
                return elements.wanted_document(unit, name)

        await run_in_threadpool(heard, service.store, name)
        await newer(service.notifier, f"element:{name}", revision, after, wait)
        return await run_in_threadpool(show)

    @router.post(
        "/{name}/confirmed",
        operation_id="confirm_element",
        summary="Say that a host or gateway carries exactly what a revision wants",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def confirmed(name: Name, confirmation: Confirmation, caller: Who) -> None:
        must_on_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        heard(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.confirm(unit, name, confirmation.revision, drain)

    @router.post(
        "/{name}/trouble",
        operation_id="report_trouble",
        summary="Say why a host or gateway cannot carry what a revision wants",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def trouble(name: Name, report: Trouble, caller: Who) -> None:
        must_on_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        heard(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.report_trouble(unit, name, report.message, report.clusters, drain)
            fail_refused(unit, name, report.refused, drain)

    @router.post(
        "/{name}/drifted",
        operation_id="report_drift",
        summary="Say that a host or gateway found itself different from what it confirmed",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def drifted(name: Name, confirmation: Confirmation, caller: Who) -> None:
        must_on_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        heard(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.set_back(unit, name, f"found different from revision {confirmation.revision}", drain)

    return router
