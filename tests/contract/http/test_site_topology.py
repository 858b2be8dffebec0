"""Tests that a site administrator can change only the part of the topology that describes the administrator's site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.credential_settings import Credential
from virtcloud.model.access import Role
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

BRNO = "/v1/sites/brno/topology"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.furnish()
    for name in ("brno", "shared"):
        installation.service.settings.credentials[Name(name)] = Credential(username="sbf")
    yield installation
    installation.close()


def ivo(world: World) -> str:
    return world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")


def read(world: World, site: str = "brno") -> tuple[dict[str, Any], str]:
    answer = ask(world, "GET", f"/v1/sites/{site}/topology", token=ivo(world))
    return answer.json(), answer.headers["etag"]


def put(world: World, part: dict[str, Any], version: str = "*", site: str = "brno") -> httpx.Response:
    path, headers = f"/v1/sites/{site}/topology", {"if-match": version}
    return ask(world, "PUT", path, part, token=ivo(world), headers=headers)


def without_h2(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"site": part["site"] | {"hosts": part["site"]["hosts"][:1]}, "links": part["links"][:1]}


def test_a_sites_part_has_its_elements_and_inner_links(world: World) -> None:
    part, _ = read(world)
    assert (part["site"]["name"], [link["a"] for link in part["links"]]) == ("brno", ["brno-h1:eth0", "brno-h2:eth0"])


def test_a_site_administrator_changes_its_own_site_only(world: World) -> None:
    part, version = read(world)
    before = world.topology()
    answer = put(world, without_h2(part), version)
    assert (answer.status_code, answer.headers["etag"] != version) == (200, True)
    after = world.topology()
    assert [host.name for host in after.site("brno").hosts] == ["brno-h1"]
    assert after.sites[1:] == before.sites[1:]
    assert set(before.links) - set(after.links) == {before.links[1]}
    assert [(row.who, row.why) for row in world.audit("topology_put")][-1] == ("ivo", "version 2")


def test_another_site_is_refused(world: World) -> None:
    part, _ = read(world, "praha")
    assert problem(put(world, part, site="praha")) == (
        403,
        "forbidden",
        (
            "ivo (site-administrator) may not change the topology of site praha: the action requires a site "
            "administrator of "
            "praha or an operator"
        ),
    )


def test_a_part_with_another_site_is_refused(world: World) -> None:
    part, _ = read(world, "praha")
    assert problem(put(world, part))[1:] == (
        "bad-input",
        "site.name: expected brno, the site in the URL, got praha",
    )


def test_a_link_to_another_site_is_refused(world: World) -> None:
    part, _ = read(world)
    part["site"]["switches"][0]["ports"].append("p9")
    part["links"].append({"a": "brno-sw1:p9", "b": "praha-h1:eth0"})
    assert problem(put(world, part))[2].startswith(
        "link brno-sw1:p9 to praha-h1:eth0: expected two elements of site brno"
    )


def test_an_impossible_part_is_refused_with_the_reason(world: World) -> None:
    part, _ = read(world)
    part["links"].append(part["links"][0])
    assert problem(put(world, part)) == (
        422,
        "bad-input",
        "port brno-h1:eth0: expected at most one link on a port, got two",
    )


def test_elements_of_a_cluster_cannot_be_removed(world: World) -> None:
    world.put("demo", spec("brno-h2"))
    part, version = read(world)
    assert problem(put(world, without_h2(part), version))[:2] == (409, "conflict")


def test_concurrent_administrators_of_a_site_lose_no_change(world: World) -> None:
    part, version = read(world)
    assert problem(ask(world, "PUT", BRNO, without_h2(part), token=ivo(world)))[:2] == (428, "precondition-required")
    assert put(world, without_h2(part), version).status_code == 200
    assert problem(put(world, part, version))[:2] == (412, "precondition-failed")


def test_a_change_of_another_site_is_no_conflict(world: World) -> None:
    part, version = read(world)
    other = ask(world, "GET", "/v1/sites/praha/topology")
    headers = {"if-match": other.headers["etag"]}
    assert ask(world, "PUT", "/v1/sites/praha/topology", without_h2(other.json()), headers=headers).status_code == 200
    assert put(world, without_h2(part), version).status_code == 200


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"credential": "brno"}, True),
        ({"credential": "brno", "address": "192.0.2.9"}, True),
        ({"credential": "shared"}, False),
        ({"credential": "praha"}, False),
        ({"credential": None, "address": "192.0.2.9"}, True),
    ],
)
def test_a_credential_is_sent_to_no_new_address(world: World, change: dict[str, object], allowed: bool) -> None:
    """SBF must not send other sites' passwords to an address that a site administrator chose."""
    world.service.settings.credentials[Name("praha")] = Credential(username="sbf")
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["switches"][0] |= {"credential": "brno", "address": "192.0.2.1"}
    document["sites"][1]["switches"][0] |= {"credential": "shared", "address": "192.0.2.2"}
    document["sites"][2]["switches"][0] |= {"credential": "praha", "address": "192.0.2.3"}
    world.put_topology(Topology.model_validate(document))
    part, _ = read(world)
    part["site"]["switches"][0] |= change
    answer = put(world, part)
    assert answer.status_code == (200 if allowed else 403), answer.text


def test_a_device_with_a_shared_credential_keeps_its_address(world: World) -> None:
    document = world.topology().model_dump(mode="json")
    for site in document["sites"][:2]:
        site["switches"][0] |= {"credential": "shared", "address": "192.0.2.1"}
    world.put_topology(Topology.model_validate(document))
    part, _ = read(world)
    assert put(world, without_h2(part)).status_code == 200
    part["site"]["switches"][0]["address"] = "192.0.2.66"
    assert problem(put(world, part))[2].startswith(
        "ivo (site-administrator) may not set credential shared for brno-sw1: expected, for a new or changed device, a "
    )


@pytest.mark.parametrize("change", [{"platform": "arista_eapi"}, {"address": "192.0.2.66"}])
def test_a_shared_credential_is_used_with_no_other_platform(world: World, change: dict[str, object]) -> None:
    """The platform determines how SBF verifies a device before the login: host key, certificate, or no verification."""
    document = world.topology().model_dump(mode="json")
    for site in document["sites"][:2]:
        site["switches"][0] |= {"credential": "shared", "address": "192.0.2.1"}
    world.put_topology(Topology.model_validate(document))
    part, _ = read(world)
    part["site"]["switches"][0] |= change
    assert problem(put(world, part))[:2] == (403, "forbidden")


def test_a_dry_run_changes_nothing(world: World) -> None:
    part, _ = read(world)
    answer = ask(world, "POST", f"{BRNO}/dry-run", without_h2(part), token=ivo(world))
    assert answer.status_code == 200
    assert len(world.topology().site("brno").hosts) == 2
    bob = world.token(Role.USER, "bob")
    assert ask(world, "POST", f"{BRNO}/dry-run", part, token=bob).status_code == 403
