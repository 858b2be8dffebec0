import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import make_profile, put
from support.sbf_fakes.world import World

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState


def report(world: World, token: str, *profiles: str, gateway: str = "brno-gw") -> httpx.Response:
    connections = [
        {"profile": profile, "protocol": "udp", "remote": "192.0.2.7:40000", "connected_at": "2026-01-01T00:00:00Z"}
        for profile in profiles
    ]
    body = {"connections": connections}
    return ask(world, "PUT", f"/v1/elements/{gateway}/vpn/connections", body, token=token)


def connections(world: World, token: str, key: str = "demo") -> list[tuple[str, str]]:
    views = ask(world, "GET", f"/v1/clusters/{key}/vpn/connections", token=token).json()
    return [(view["device"], view["gateway"]) for view in views]


def test_a_report_replaces_the_gateways_former_report(world: World, alice: str) -> None:
    put(world)
    laptop, phone = (make_profile(world, alice, device=name).json()["id"] for name in ("laptop", "phone"))
    agent, other = (world.token(Role.AGENT, name) for name in ("brno-gw", "brno-gw2"))
    report(world, agent, laptop)
    report(world, other, phone, gateway="brno-gw2")
    report(world, agent, phone, phone)
    assert sorted(connections(world, alice)) == [("phone", "brno-gw"), ("phone", "brno-gw2")]
    report(world, agent)
    assert connections(world, alice) == [("phone", "brno-gw2")]


def test_a_gateway_reports_only_for_its_own_clusters(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    agent = world.token(Role.AGENT, "praha-gw")
    assert report(world, agent, laptop, "unknown", gateway="praha-gw").status_code == 204
    assert report(world, agent, laptop).status_code == 403
    assert connections(world, alice) == []


def test_control_characters_in_a_gateways_report_are_replaced(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    entry = {"profile": laptop, "protocol": "udp", "remote": "\x1b[2J\x00x", "connected_at": "2026-01-01T00:00:00Z"}
    body = {"connections": [entry, entry | {"profile": "\x00"}]}
    agent = world.token(Role.AGENT, "brno-gw")
    assert ask(world, "PUT", "/v1/elements/brno-gw/vpn/connections", body, token=agent).status_code == 204
    (view,) = ask(world, "GET", "/v1/clusters/demo/vpn/connections", token=alice).json()
    assert view["remote"] == "\ufffd[2J\ufffdx"


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("9999-12-31T23:59:59-01:00", "expected a time in the years 1 to 9999 of UTC, got 9999-12-31T23:59:59-01:00"),
        (
            "2026-01-01T00:00:00",
            "expected a time with a time zone such as 2026-11-20T07:12:03Z, got 2026-01-01T00:00:00",
        ),
    ],
)
def test_a_reported_time_that_utc_cannot_express_is_refused(world: World, moment: str, message: str) -> None:
    entry = {"profile": "a", "protocol": "udp", "remote": "192.0.2.7:40000", "connected_at": moment}
    refused = ask(world, "PUT", "/v1/elements/brno-gw/vpn/connections", {"connections": [entry]})
    assert problem(refused) == (422, "bad-input", f"connections.0.connected_at: {message}")


def test_a_host_has_no_vpn_connections(world: World) -> None:
    failed = report(world, world.token(Role.AGENT, "brno-h1"), gateway="brno-h1")
    assert problem(failed) == (
        409,
        "conflict",
        "host brno-h1 is not a gateway: only gateways have VPN connections",
    )


def test_a_released_cluster_has_no_connections(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    world.settle()
    report(world, world.token(Role.AGENT, "brno-gw"), laptop)
    world.delete("demo")
    world.settle()
    assert (world.view("demo").state, connections(world, alice)) == (ClusterState.RELEASED, [])
