import asyncio
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec

from sbf_service.http.app import create_app
from sbf_service.http.auth.authentication import client_address, is_loopback
from sbf_service.http.auth.connections import LocalPeer
from virtcloud.model.access import Role

CLUSTER = "/v1/clusters/demo"


UNKNOWN = (404, "not-found", "cluster demo is not known; list the clusters: virtcloud cluster list")


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def database_contents(world: World) -> str:
    folder = Path(world.database.removeprefix("sqlite:///")).parent
    return "".join(file.read_bytes().decode("latin-1") for file in folder.glob("sbf.db*"))


def test_a_call_without_token_gets_only_login_advice(world: World) -> None:
    answer = ask(world, "GET", CLUSTER, token="")
    assert problem(answer) == (
        401,
        "unauthenticated",
        (
            "this SBF requires a token: log in with 'virtcloud login', or name a token's file with --token-file or "
            "VIRTCLOUD_TOKEN_FILE"
        ),
    )
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/audit", "/v1/tokens", "/v1/whoami", "/", "/docs/x"])
def test_path_variants_do_not_bypass_authentication(world: World, path: str) -> None:
    assert ask(world, "GET", path, token="").status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json", "/metrics"])
def test_open_paths_need_no_token(world: World, path: str) -> None:
    """``/metrics`` needs no token on the loopback interface. The calls of this test come from there."""
    assert ask(world, "GET", path, token="").status_code == 200


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::ffff:192.0.2.1", False), ("192.0.2.1", False)],
)
def test_a_mapped_loopback_address_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback({"client": (address, 1)}) is loopback


def test_a_mapped_address_is_shown_as_ipv4() -> None:
    assert client_address({"client": ("::ffff:192.0.2.1", 1)}) == "192.0.2.1"


def test_remote_metrics_need_a_token_of_any_role(world: World) -> None:
    def scrape(token: str) -> int:
        async def call() -> int:
            transport = httpx.ASGITransport(create_app(world.service), client=("192.0.2.7", 4000))
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with httpx.AsyncClient(transport=transport, base_url="http://sbf", headers=headers) as http:
                return (await http.get("/metrics")).status_code

        return asyncio.run(call())

    assert (scrape(""), scrape(world.token(Role.AGENT, "brno-h1"))) == (401, 200)


def test_a_token_identifies_its_principal(world: World) -> None:
    token = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno", "praha")
    assert ask(world, "GET", "/v1/whoami", token=token).json() == {
        "name": "ivo",
        "role": "site-administrator",
        "sites": ["brno", "praha"],
        "token": token.split("_")[1],
    }


@pytest.mark.parametrize("token", ["vc_aaaaaaaa_" + "A" * 43, "hunter2", "vc_"])
def test_an_unknown_token_is_refused(world: World, token: str) -> None:
    assert problem(ask(world, "GET", CLUSTER, token=token))[:2] == (401, "unauthenticated")


def test_a_token_with_another_secret_is_refused(world: World) -> None:
    token = world.token(Role.OPERATOR, "eva")
    other = token[:-3] + ("AAA" if not token.endswith("AAA") else "BBB")
    assert problem(ask(world, "GET", "/v1/whoami", token=other)) == (
        401,
        "unauthenticated",
        "this SBF has no such token: check the token and the address of SBF",
    )


def test_a_token_expires(world: World) -> None:
    token = world.token(Role.USER, "alice", expires_in_s=3600)
    assert ask(world, "GET", "/v1/whoami", token=token).status_code == 200
    world.clock.advance(3600)
    world.service.token_cache.clock = lambda: 1e9  # the entry of the token cache has expired
    assert problem(ask(world, "GET", "/v1/whoami", token=token))[2] == (
        f"token {token.split('_')[1]} of alice expired at 2026-01-01 01:00:00 UTC: an operator can create a new token"
    )


def test_a_revoked_token_is_refused_immediately(world: World) -> None:
    token = world.token(Role.OPERATOR, "eva")
    id_ = token.split("_")[1]
    assert ask(world, "GET", "/v1/whoami", token=token).status_code == 200
    first = ask(world, "DELETE", f"/v1/tokens/{id_}").json()
    assert first == ask(world, "DELETE", f"/v1/tokens/{id_}").json()
    assert problem(ask(world, "GET", "/v1/whoami", token=token))[2] == (
        f"token {id_} of eva was revoked at 2026-01-01 00:00:00 UTC: an operator can create a new token"
    )


def test_revoked_tokens_stay_refused_if_the_clock_is_set_back(world: World) -> None:
    token = world.token(Role.OPERATOR, "eva")
    ask(world, "DELETE", f"/v1/tokens/{token.split('_')[1]}")
    world.clock.advance(-3600)
    assert problem(ask(world, "GET", "/v1/whoami", token=token))[:2] == (401, "unauthenticated")


def test_a_token_is_shown_once_and_stored_as_hash(world: World) -> None:
    created = ask(world, "POST", "/v1/tokens", {"name": "alice", "role": "user"})
    assert created.status_code == 201
    secret = created.json()["token"].split("_", 2)[2]
    listed = ask(world, "GET", "/v1/tokens").text
    assert created.json()["id"] in listed
    assert secret not in listed + ask(world, "GET", "/v1/audit").text + database_contents(world)


def test_the_use_of_a_token_is_recorded_hourly(world: World) -> None:
    token = world.token(Role.USER, "alice")
    world.service.token_cache.clock = iter(range(0, 10**6, 100)).__next__  # each entry of the token cache has expired
    last_uses = []
    for minutes in (0, 59, 1):
        world.clock.advance(60 * minutes)
        ask(world, "GET", "/v1/whoami", token=token)
        last_uses.append(ask(world, "GET", "/v1/tokens").json()[0]["last_used_at"])
    assert last_uses == ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]


def test_creating_and_revoking_tokens_is_audited(world: World) -> None:
    eva = world.token(Role.OPERATOR, "eva")
    created = ask(
        world, "POST", "/v1/tokens", {"name": "ivo", "role": "site-administrator", "sites": ["brno"]}, token=eva
    )
    ask(world, "DELETE", f"/v1/tokens/{created.json()['id']}", token=eva)
    rows = [(row.who, row.what, row.why) for row in world.audit()[-2:]]
    entry = f"{created.json()['id']}: ivo, site-administrator of brno"
    assert rows == [("eva", "token_created", entry), ("eva", "token_revoked", entry)]


def test_a_token_for_an_unknown_site_is_refused(world: World) -> None:
    wanted = {"name": "ivo", "role": "site-administrator", "sites": ["brno", "nowhere"]}
    assert problem(ask(world, "POST", "/v1/tokens", wanted)) == (
        422,
        "bad-input",
        (
            "expected sites of the topology (brno, plzen, praha), got nowhere: correct the name, or add "
            "the site first (virtcloud topology set)"
        ),
    )
    assert ask(world, "GET", "/v1/tokens").json() == []


def test_a_token_may_precede_the_first_topology(database: str) -> None:
    with closing(World(database)) as world:
        assert ask(world, "GET", "/v1/topology").status_code == 404
        wanted = {"name": "ivo", "role": "site-administrator", "sites": ["brno"]}
        assert ask(world, "POST", "/v1/tokens", wanted).json()["sites"] == ["brno"]


def test_the_kernel_identifies_local_users_and_root(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    assert ask(world, "GET", CLUSTER, local=LocalPeer(1000, "alice")).status_code == 200
    assert problem(ask(world, "GET", CLUSTER, local=LocalPeer(1001, "bob"))) == UNKNOWN
    assert ask(world, "GET", "/v1/whoami", local=LocalPeer(0, "root")).json()["role"] == "operator"
    assert ask(world, "GET", "/v1/whoami", local=LocalPeer(65534, None)).status_code == 401
