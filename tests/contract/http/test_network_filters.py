from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec

from virtcloud.model.topology import Topology


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """All hosts of Brno except brno-h2 allow clusters with open filters. Hosts of other sites do not."""
    installation = make_world(tmp_path)
    installation.furnish()
    document = installation.topology().model_dump(mode="json")
    document["sites"][0] |= {"open_filters": True}
    document["sites"][0]["hosts"][1] |= {"open_filters": False}
    installation.put_topology(Topology.model_validate(document))
    yield installation
    installation.close()


def put(world: World, key: str, *hosts: str, **keys: Any) -> tuple[int, str]:
    answer = ask(world, "PUT", f"/v1/clusters/{key}", {"spec": spec(*hosts, **keys).model_dump(mode="json")})
    return (answer.status_code, "" if answer.is_success else problem(answer)[2])


@pytest.mark.parametrize("host", ["brno-h2", "praha-h1"])
def test_open_filters_need_the_sites_permission(world: World, host: str) -> None:
    assert put(world, "a", "brno-h1", filters="open") == (201, "")
    status, detail = put(world, "b", "brno-h1", host, filters="open")
    assert (status, detail.partition(":")[0]) == (
        403,
        f"host {host} allows no guests of clusters with open filters",
    )


def test_a_host_without_guests_may_be_in_an_open_cluster(world: World) -> None:
    assert put(world, "a", "brno-h1", hosts=["praha-h1"], filters="open") == (201, "")


def test_a_members_hosts_must_allow_the_networks_filters(world: World) -> None:
    put(world, "a", "brno-h1", filters="open")
    assert put(world, "m", "brno-h2", joins="a", guests=[guest("m1", "brno-h2")])[0] == 403


def test_guests_whose_addresses_are_checked_need_an_address(world: World) -> None:
    guests = [guest("g1", "brno-h1", "10.0.0.1/24"), guest("g2", "brno-h1")]
    status, detail = put(world, "a", "brno-h1", guests=guests, subnets=[], filters="addresses")
    expected = "spec.guests: with filters 'addresses', expected each guest to have an address, got none for g2"
    assert (status, detail) == (422, expected)


def test_agents_receive_the_networks_filters(world: World) -> None:
    put(world, "a", "brno-h1", guests=[guest("g1", "brno-h1", "10.0.0.1/24")], filters="addresses", serves=["dhcp"])
    put(world, "n", "brno-h2", joins="a", guests=[guest("n1", "brno-h2", "10.0.0.2/24")])
    for host in ("brno-h1", "brno-h2"):
        (segment,) = ask(world, "GET", f"/v1/elements/{host}/wanted").json()["wanted"]["segments"]
        assert (segment["filters"], segment["serves"], segment["requires"]) == (
            "addresses",
            ["dhcp"],
            ["address-filters"],
        )


def test_agents_of_hosts_with_guests_must_know_the_services(world: World) -> None:
    """An older agent would start no DHCP server, so the guests of the agent's host would get no address."""
    put(
        world,
        "a",
        "brno-h1",
        guests=[guest("g1", "brno-h1")],
        hosts=["praha-h1"],
        host_services=["dhcp", "dns", "metadata"],
    )
    put(world, "n", "brno-h2", joins="a", guests=[guest("n1", "brno-h2")])
    found = {}
    for host in ("brno-h1", "brno-h2", "praha-h1"):
        (segment,) = ask(world, "GET", f"/v1/elements/{host}/wanted").json()["wanted"]["segments"]
        found[host] = (segment["host_services"], segment["requires"], len(segment["peers"]))
    services = ["dhcp", "dns", "metadata"]
    assert found == {
        "brno-h1": (services, ["host-services"], 2),
        "brno-h2": (services, ["host-services"], 2),
        "praha-h1": (services, [], 2),
    }


def guest(name: str, host: str, *addresses: str) -> dict[str, object]:
    return {"name": name, "host": host, "image": "busybox", "addresses": addresses}
