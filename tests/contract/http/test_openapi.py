"""Tests that the OpenAPI document is complete, and that the pages of the API load nothing from other hosts."""

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from sbf_fakes.openapi_document import openapi_document
from sbf_fakes.world import World

from sbf_service.http.app import create_app
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.views import Problem

Document = dict[str, object]


@pytest.fixture
def document(world: World) -> Document:
    return openapi_document()


def error_contents(document: Document) -> Iterator[tuple[str, dict[str, object]]]:
    for path in document["paths"].values():  # type: ignore[attr-defined]
        for call in path.values():
            for status, answer in call["responses"].items():
                if status >= "4":
                    yield status, answer["content"]["application/problem+json"]


def slugs(root: type[VirtcloudError]) -> set[str]:
    """Return the slugs of SBF's errors. Other tests of this process may have imported errors of agents and labs."""
    own = {root.slug} if root.__module__.startswith(("sbf_service.", "virtcloud.model.")) else set()
    return own.union(*(slugs(kind) for kind in root.__subclasses__()))


def test_every_error_refers_to_one_problem_document(document: Document) -> None:
    assert {str(content["schema"]) for _, content in error_contents(document)} == {
        "{'$ref': '#/components/schemas/Problem'}"
    }


def test_the_types_of_problems_are_an_enumeration(document: Document) -> None:
    kinds = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]  # type: ignore[index]
    expected = {*slugs(VirtcloudError), "http", "no-such-method", "no-such-route", "not-ready"}
    assert {kind.removeprefix("urn:virtcloud:problem:") for kind in kinds} >= expected


def test_every_error_answer_has_an_example_of_its_status(document: Document) -> None:
    for status, content in error_contents(document):
        assert Problem.model_validate(content["example"]).status == int(status)


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_pages_of_the_api_load_nothing_from_other_hosts(world: World, page: str) -> None:
    async def fetch() -> tuple[str, list[httpx.Response]]:
        transport = httpx.ASGITransport(create_app(world.service))
        async with httpx.AsyncClient(transport=transport, base_url="http://sbf") as client:
            text = (await client.get(page)).text
            links = re.findall(r'(?:src|href)="([^"]+)"', text)
            return text, [await client.get(link) for link in links]

    text, fetched = asyncio.run(fetch())
    assert re.findall(r"https?://", text) == []
    assert fetched
    assert {answer.status_code for answer in fetched} == {200}


def test_every_property_is_described(document: Document) -> None:
    schemas = document["components"]["schemas"]  # type: ignore[index]
    assert {
        f"{name}.{key}"
        for name, schema in schemas.items()
        for key, value in schema.get("properties", {}).items()
        if not value.get("description")
    } == set()
