from functools import cache
from typing import Any

from sbf_service.bootstrap import build_service
from sbf_service.http.app import create_app
from sbf_service.settings import ServiceSettings


@cache
def openapi_document() -> dict[str, Any]:
    return create_app(build_service(ServiceSettings())).openapi()
