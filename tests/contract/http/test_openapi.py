"""Tests that the OpenAPI document is complete, and that the API's pages load nothing from other hosts."""

import asyncio
import re
from collections.abc import Iterator

import httpx
import pytest
from support.sbf_fakes.openapi_document import openapi_document
from support.sbf_fakes.world import World

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
    """Return the slugs of SBF's errors.

    Omit the errors of agents and labs. They are subclasses of ``root`` only if other tests imported their modules.
    """
    own = {root.slug} if root.__module__.startswith(("sbf_service.", "virtcloud.model.")) else set()
    return own.union(*(slugs(kind) for kind in root.__subclasses__()))


def test_every_error_refers_to_one_problem_document(document: Document) -> None:
    assert {str(content["schema"]) for _, content in error_contents(document)} == {
        "{'$ref': '#/components/schemas/Problem'}"
    }


def test_the_types_of_problems_are_an_enumeration(document: Document) -> None:
    kinds = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
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
    schemas = document["components"]["schemas"]
    assert {
        f"{name}.{key}"
        for name, schema in schemas.items()
        for key, value in schema.get("properties", {}).items()
        if not value.get("description")
    } == set()


def test_the_openapi_document_names_every_call_and_its_problems(world: World) -> None:
    document = openapi_document()
    calls = {
        call["operationId"]: sorted(status for status in call["responses"] if status >= "4")
        for path in document["paths"].values()
        for call in path.values()
    }
    assert calls == {
        "put_cluster": ["401", "403", "404", "409", "410", "422", "429"],
        "get_cluster": ["401", "403", "404", "422", "429"],
        "list_clusters": ["401", "403", "404", "422", "429"],
        "get_peers": ["401", "403", "404", "409", "422", "429"],
        "create_ssh_certificate": ["401", "403", "404", "409", "422", "429"],
        "list_ssh_certificates": ["401", "403", "404", "409", "422", "429"],
        "revoke_ssh_certificate": ["401", "403", "404", "409", "422", "429"],
        "list_ssh_connections": ["401", "403", "404", "409", "422", "429"],
        "report_ssh_connections": ["401", "403", "404", "409", "422", "429"],
        "list_publications": ["401", "403", "404", "409", "422", "429"],
        "publish_guest": ["401", "403", "404", "409", "422", "429"],
        "unpublish_guest": ["401", "403", "404", "409", "422", "429"],
        "get_ssh_access": ["401", "403", "404", "409", "422", "429"],
        "list_destination_uses": ["401", "403", "404", "409", "422", "429"],
        "list_traffic": ["401", "403", "404", "409", "422", "429"],
        "report_traffic": ["401", "403", "404", "409", "422", "429"],
        "report_destination_uses": ["401", "403", "404", "409", "422", "429"],
        "list_guests": ["401", "403", "404", "409", "422", "429"],
        "get_guest": ["401", "403", "404", "409", "422", "429"],
        "put_guest_power": ["401", "403", "404", "409", "422", "429"],
        "delete_cluster": ["401", "403", "404", "410", "422", "429"],
        "extend_lease": ["401", "403", "404", "409", "410", "422", "429"],
        "share_network": ["401", "403", "404", "409", "410", "422", "429"],
        "unshare_network": ["401", "403", "404", "409", "410", "422", "429"],
        "put_topology": ["401", "403", "409", "412", "422", "428", "429"],
        "get_topology": ["401", "403", "404", "429"],
        "preview_topology": ["401", "403", "409", "422", "429", "503"],
        "list_sites": ["401", "403", "404", "422", "429"],
        "get_site": ["401", "403", "404", "422", "429"],
        "put_pool": ["401", "403", "404", "409", "412", "422", "429"],
        "get_pool": ["401", "403", "404", "422", "429"],
        "preview_pool": ["401", "403", "404", "409", "422", "429", "503"],
        "say_clean": ["401", "403", "404", "409", "422", "429"],
        "verify_site": ["401", "403", "404", "422", "429", "503"],
        "get_preparation": ["401", "403", "404", "409", "422", "429"],
        "list_elements": ["401", "403", "422", "429"],
        "get_element": ["401", "403", "404", "422", "429"],
        "get_wanted": ["401", "403", "404", "409", "422", "429"],
        "confirm_element": ["401", "403", "404", "409", "422", "429"],
        "report_trouble": ["401", "403", "404", "409", "422", "429"],
        "report_drift": ["401", "403", "404", "409", "422", "429"],
        "report_capacity": ["401", "403", "404", "409", "422", "429"],
        "list_waiting_sessions": ["401", "403", "404", "422", "429"],
        "create_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_profiles": ["401", "403", "404", "409", "422", "429"],
        "get_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "revoke_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_connections": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_invitations": ["401", "403", "404", "409", "422", "429"],
        "invite_vpn_user": ["401", "403", "404", "409", "422", "429"],
        "withdraw_vpn_invitation": ["401", "403", "404", "409", "422", "429"],
        "report_vpn_connections": ["401", "403", "404", "409", "422", "429"],
        "renew_vpn_authority": ["401", "403", "429"],
        "verify_cluster": ["401", "403", "404", "409", "410", "422", "429"],
        "upload_clone": ["401", "403", "404", "409", "413", "422", "429", "507"],
        "list_images": ["401", "403", "422", "429"],
        "get_image": ["401", "403", "404", "422", "429"],
        "add_image": ["401", "403", "404", "409", "422", "429"],
        "remove_image": ["401", "403", "404", "409", "422", "429", "507"],
        "upload_image": ["401", "403", "404", "409", "413", "422", "429", "507"],
        "get_image_content": ["401", "403", "404", "422", "429", "507"],
        "verify_image": ["401", "403", "404", "422", "429", "507"],
        "share_image": ["401", "403", "404", "422", "429"],
        "certify_image": ["401", "403", "404", "422", "429"],
        "revoke_certification": ["401", "403", "404", "422", "429"],
        "get_difference": ["401", "403", "404", "409", "422", "429", "502", "503", "504"],
        "reconcile_element": ["401", "403", "404", "409", "422", "429", "503"],
        "list_ports": ["401", "403", "404", "409", "422", "429", "502", "503", "504"],
        "declare_element_clean": ["401", "403", "404", "409", "422", "429"],
        "adopt_ports": ["401", "403", "404", "409", "422", "429", "503"],
        "release_ports": ["401", "403", "404", "409", "422", "429", "503"],
        "get_audit": ["401", "403", "422", "429"],
        "get_site_topology": ["401", "403", "404", "422", "429"],
        "put_site_topology": ["401", "403", "404", "409", "412", "422", "428", "429"],
        "preview_site_topology": ["401", "403", "404", "409", "422", "429", "503"],
        "list_asked_jobs": ["401", "403", "422", "429"],
        "answer_for_job": ["401", "403", "422", "429"],
        "who_am_i": ["401", "403", "429"],
        "create_token": ["401", "403", "422", "429"],
        "list_tokens": ["401", "403", "422", "429"],
        "list_keys": ["401", "403", "422", "429"],
        "add_key": ["401", "403", "422", "429"],
        "remove_key": ["401", "403", "404", "422", "429"],
        "revoke_token": ["401", "403", "404", "422", "429"],
        "list_quotas": ["401", "403", "422", "429"],
        "get_quota": ["401", "403", "422", "429"],
        "put_quota": ["401", "403", "422", "429"],
        "get_health": [],
        "get_readiness": ["503"],
        "get_metrics": ["401", "403", "429"],
    }
    problems = {
        media
        for path in document["paths"].values()
        for call in path.values()
        for status, answer in call["responses"].items()
        if status >= "4"
        for media in answer["content"]
    }
    assert problems == {"application/problem+json"}
    assert all(call["summary"] for path in document["paths"].values() for call in path.values())
