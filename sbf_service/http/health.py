"""Whether the service is well."""

from fastapi import APIRouter
from sqlalchemy import text

from sbf_service.service import Service
from virtcloud.model.document import Document


class Health(Document):
    """The service answers, and so does its database."""

    status: str = "ok"


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(tags=["service"])

    @router.get("/healthz", operation_id="get_health", summary="Say whether the service and its database answer")
    def get() -> Health:
        with service.store.read() as unit:
            unit.session.execute(text("SELECT 1"))
        return Health()

    return router
