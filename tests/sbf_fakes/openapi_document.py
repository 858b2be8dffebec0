"""The OpenAPI document of SBF."""

from functools import cache
from typing import Any

from sbf_service.bootstrap import build_service
from sbf_service.http.app import create_app
from sbf_service.settings import ServiceSettings


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document, the same for all applications. FastAPI needs almost a second to create it."""
    return create_app(build_service(ServiceSettings())).openapi()
