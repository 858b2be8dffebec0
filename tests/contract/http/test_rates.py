"""Tests of rate limits. The limits count calls per hour, so that slow and fast tests have the same result.

A token is *known* if an earlier check has found the token valid.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.sbf_fakes.http_calls import app_of, ask, body, problem
from support.sbf_fakes.world import World, make_world

from sbf_service.bootstrap import SbfService
from sbf_service.http.auth.caller import find_origin
from sbf_service.settings import RateLimits
from virtcloud.model.access import Role

WRONG = "vc_aaaaaaaa_" + "A" * 43


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three sites, and a limit of three calls per hour for each limited kind of call."""
    installation = make_world(tmp_path)
    installation.furnish()
    rates = RateLimits.model_validate({"failed_tokens": "3/hour", "clusters": "3/hour", "device_reads": "3/hour"})
    settings = installation.service.settings.model_copy(update={"rates": rates})
    installation.service = SbfService(**(vars(installation.service) | {"settings": settings}))
    yield installation
    installation.close()


def ask_from(world: World, address: str, token: str) -> int:
    async def call() -> int:
        transport = httpx.ASGITransport(app_of(world.service), client=(address, 40000))
        async with httpx.AsyncClient(transport=transport, base_url="http://sbf") as http:
            return (await http.get("/v1/whoami", headers={"authorization": f"Bearer {token}"})).status_code

    return asyncio.run(call())


def test_invalid_tokens_from_one_address_are_limited(world: World) -> None:
    known, new = world.token(Role.USER, "alice"), world.token(Role.USER, "bob")
    assert ask(world, "GET", "/v1/whoami", token=known).status_code == 200
    statuses = [ask(world, "GET", "/v1/whoami", token=WRONG).status_code for _ in range(4)]
    assert statuses == [401, 401, 401, 429]
    refused = ask(world, "GET", "/v1/whoami", token=new)
    assert problem(refused)[:2] == (429, "too-many-requests")
    assert problem(refused)[2].startswith("127.0.0.1 sent too many invalid tokens (limit 3/hour): try again in ")
    assert 3500 < int(refused.headers["retry-after"]) <= 3600


def test_addresses_of_one_ipv6_network_count_as_one(world: World) -> None:
    statuses = [ask_from(world, f"2001:db8:0:1::{n}", WRONG) for n in range(1, 5)]
    assert statuses == [401, 401, 401, 429]
    assert ask_from(world, "2001:db8:0:2::1", WRONG) == 401


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("192.0.2.1", "192.0.2.1"),
        ("uid 1000", "uid 1000"),
    ],
)
def test_failures_are_counted_for_an_address_or_its_ipv6_network(address: str, origin: str) -> None:
    assert find_origin(address) == origin


def test_known_tokens_and_local_users_pass_a_limited_address(world: World) -> None:
    known = world.token(Role.USER, "alice")
    ask(world, "GET", "/v1/whoami", token=known)
    for _ in range(4):
        ask(world, "GET", "/v1/whoami", token=WRONG)
    world.service.token_cache.clock = lambda: 1e9  # the cache has expired
    assert ask(world, "GET", "/v1/whoami", token=known).status_code == 200
    assert ask(world, "GET", "/v1/whoami").status_code == 200
    assert ask(world, "GET", "/healthz", token=WRONG).status_code == 200


def test_after_a_revocation_other_known_tokens_pass_a_limited_address(world: World) -> None:
    known, other = world.token(Role.AGENT, "brno-h1"), world.token(Role.USER, "bob")
    for token in (known, other):
        assert ask(world, "GET", "/v1/whoami", token=token).status_code == 200
    for _ in range(4):
        ask(world, "GET", "/v1/whoami", token=WRONG)
    ask(world, "DELETE", f"/v1/tokens/{other.split('_')[1]}")
    statuses = [ask(world, "GET", "/v1/whoami", token=token).status_code for token in (known, other, other)]
    assert statuses == [200, 401, 429]


def test_cluster_requests_are_limited_for_users_only(world: World) -> None:
    alice, pbs = world.token(Role.USER, "alice"), world.token(Role.SCHEDULER, "pbs")
    statuses = [ask(world, "PUT", f"/v1/clusters/c{n}", body("brno-h1"), token=alice).status_code for n in range(4)]
    assert statuses == [201, 201, 201, 429]
    assert ask(world, "PUT", "/v1/clusters/c9", body("brno-h1"), token=pbs).status_code == 201
    refused = problem(ask(world, "PUT", "/v1/clusters/c3?dry_run=true", body("brno-h1"), token=alice))
    assert refused[2].startswith("alice requested clusters too often (limit 3/hour): try again in ")


def test_device_reads_are_limited_for_each_caller(world: World) -> None:
    world.settle()
    ivo = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    calls = [("GET", "/v1/elements/brno-sw1/difference?read=true"), ("POST", "/v1/elements/brno-sw1/reconcile")] * 2
    assert [ask(world, *call, token=ivo).status_code for call in calls] == [200, 200, 200, 429]
    assert ask(world, "GET", "/v1/elements/brno-sw1/difference", token=ivo).status_code == 200
    assert ask(world, *calls[0], token=world.token(Role.OPERATOR, "eva")).status_code == 200


def test_refused_calls_are_counted_without_flooding_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for token in (WRONG, "rubbish", "") * 3:
        ask(world, "GET", "/v1/whoami", token=token)
    assert 'virtcloud_denied_total{problem="too-many-requests"} 3.0' in ask(world, "GET", "/metrics").text
    assert len([record for record in caplog.records if record.message.startswith("denied ")]) == 3


@pytest.mark.parametrize("rate", ["0/minute", "5", "5/fortnight", "5/minute;1/second"])
def test_an_invalid_rate_limit_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="a rate such as 60/minute"):
        RateLimits.model_validate({"clusters": rate})
