"""Tests that the tables in ``version_0_1.py`` agree with the OpenAPI document of the previous version."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from compatibility.previous import THIS, Version

from sbf_service.http.version_0_1 import ANSWERS, INNER, KEYS, PROBLEMS

SLUGS = """
import json
from virtcloud.model.errors import VirtcloudError
def slugs(root): return {root.slug}.union(*map(slugs, root.__subclasses__()))
print(json.dumps(sorted(slugs(VirtcloudError))))
"""
REQUESTS = """
import json
try:
    from virtcloud.agent.job_socket.socket_requests import REQUEST_KINDS as KINDS
except ImportError:
    from virtcloud.agent.local.requests import KINDS
print(json.dumps({name: kind.model_json_schema() for name, kind in KINDS.items()}))
"""
RENAMED = {
    "CleanWord": "CleanDeclaration",
    "Progress": "PlacementProgress",
    "Side": "PreparationSide",
    "State": "ClusterState",
    "Trouble": "ElementErrorReport",
}
"""Renamed schemas: the name in the previous version -> the present name."""
Schema = dict[str, Any]


def openapi(version: Version) -> Schema:
    document: Schema = json.loads(version.run("-m", "sbf_service", "openapi").stdout)
    return document


@pytest.fixture(scope="module")
def api(previous: Version) -> Schema:
    return openapi(previous)


@pytest.fixture(scope="module")
def this_api() -> Schema:
    return openapi(THIS)


def refs(schema: Schema | None) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to: directly, in a list, or as an alternative."""
    if schema is None:
        return
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    for inner in (schema.get("items"), *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from refs(inner)


def documents(api: Schema, schema: Schema | None) -> tuple[str, ...]:
    """Return the names of the schemas that ``schema`` refers to. Omit schemas of enumerations."""
    return tuple(one for one in refs(schema) if "properties" in api["components"]["schemas"][one])


def calls(api: Schema) -> dict[str, Schema]:
    return {call["operationId"]: call for path in api["paths"].values() for call in path.values()}


def content(part: Schema) -> Schema | None:
    schema: Schema | None = part.get("content", {}).get("application/json", {}).get("schema")
    return schema


def test_the_documents_of_each_operation_match_the_table(api: Schema) -> None:
    found = {}
    for name, call in calls(api).items():
        for status, answer in call["responses"].items():
            if status < "4" and (named := documents(api, content(answer))):
                found[name] = named
    assert found == ANSWERS


def test_the_keys_of_each_document_match_the_table(api: Schema) -> None:
    schemas = api["components"]["schemas"]
    assert {name: frozenset(schemas[name]["properties"]) for name in KEYS} == KEYS


def test_the_documents_within_documents_match_the_table(api: Schema) -> None:
    schemas = api["components"]["schemas"]
    found = {
        (name, key): named
        for name in KEYS
        for key, schema in schemas[name]["properties"].items()
        if (named := documents(api, schema))
    }
    assert found == INNER
    assert {one for named in (*INNER.values(), *ANSWERS.values()) for one in named} == KEYS.keys()


def test_the_types_of_problems_match_the_table(previous: Version) -> None:
    assert frozenset(json.loads(previous.run("-c", SLUGS).stdout)) == PROBLEMS


def test_no_enumeration_of_answers_has_a_new_value(api: Schema, this_api: Schema) -> None:
    """The previous version rejects unknown values of enumerations.

    In answers to the previous version, the present version omits keys that the previous version does not know, but does
    not replace values that the previous version does not know.
    """
    then, now = (one["components"]["schemas"] for one in (api, this_api))
    values = {name: schema["enum"] for name, schema in then.items() if "enum" in schema}
    added = {name: {*now[RENAMED.get(name, name)]["enum"]} - {*former} for name, former in values.items()}
    assert added == {name: set() for name in values}
    assert values.keys() >= {"State", "Progress", "ElementKind", "Role"}


def test_every_body_of_the_previous_version_is_accepted(api: Schema, this_api: Schema) -> None:
    then, now = calls(api), calls(this_api)
    bodies = {
        name: documents(api, content(call["requestBody"]))[0]
        for name, call in then.items()
        if "requestBody" in call and name in now
    }
    assert bodies["put_cluster"] == "ClusterRequest"
    for document in bodies.values():
        former = api["components"]["schemas"][document]
        later = this_api["components"]["schemas"][RENAMED.get(document, document)]
        assert former["properties"].keys() <= later["properties"].keys()
        assert set(later.get("required", ())) <= set(former.get("required", ()))


def test_no_operation_except_check_element_was_removed(api: Schema, this_api: Schema) -> None:
    assert calls(api).keys() - calls(this_api).keys() == {"check_element"}


def test_socket_requests_of_both_versions_have_the_same_keys(previous: Version) -> None:
    then, now = (json.loads(one.run("-c", REQUESTS).stdout) for one in (previous, THIS))
    assert then.keys() == now.keys()
    for name, former in then.items():
        assert former["properties"].keys() == now[name]["properties"].keys()
        assert former["required"] == now[name]["required"]
