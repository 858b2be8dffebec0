"""Tests of every operation with a stolen token of each role, on resources of the token's holder and of others.

The operations come from the OpenAPI document. If ``EVERY_CALL`` lacks an operation, a test fails.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, body, client, problem
from support.sbf_fakes.openapi_document import openapi_document
from support.sbf_fakes.vpn_world import CSR, furnish
from support.sbf_fakes.world import World, make_world, spec, three_sites

from virtcloud.model.access import Role
from virtcloud.model.values import Name

EVERY_CALL = frozenset(
    {
        "put_cluster",
        "get_cluster",
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "delete_cluster",
        "list_clusters",
        "extend_lease",
        "share_network",
        "unshare_network",
        "list_guests",
        "get_guest",
        "put_guest_power",
        "verify_cluster",
        "list_waiting_sessions",
        "create_vpn_profile",
        "list_vpn_profiles",
        "get_vpn_profile",
        "revoke_vpn_profile",
        "list_vpn_connections",
        "list_vpn_invitations",
        "invite_vpn_user",
        "withdraw_vpn_invitation",
        "report_vpn_connections",
        "report_destination_uses",
        "report_traffic",
        "renew_vpn_authority",
        "upload_clone",
        "put_topology",
        "get_topology",
        "preview_topology",
        "list_sites",
        "get_site",
        "get_pool",
        "put_pool",
        "preview_pool",
        "say_clean",
        "verify_site",
        "get_preparation",
        "get_site_topology",
        "put_site_topology",
        "preview_site_topology",
        "get_ssh_access",
        "create_ssh_certificate",
        "list_ssh_certificates",
        "revoke_ssh_certificate",
        "list_ssh_connections",
        "report_ssh_connections",
        "list_publications",
        "publish_guest",
        "unpublish_guest",
        "list_elements",
        "get_element",
        "get_wanted",
        "confirm_element",
        "report_trouble",
        "report_drift",
        "report_capacity",
        "get_difference",
        "reconcile_element",
        "list_ports",
        "adopt_ports",
        "declare_element_clean",
        "release_ports",
        "get_audit",
        "who_am_i",
        "list_tokens",
        "create_token",
        "revoke_token",
        "list_quotas",
        "get_quota",
        "put_quota",
        "list_keys",
        "add_key",
        "remove_key",
        "list_images",
        "get_image",
        "get_image_content",
        "add_image",
        "upload_image",
        "verify_image",
        "share_image",
        "certify_image",
        "revoke_certification",
        "remove_image",
        "list_asked_jobs",
        "answer_for_job",
        "get_metrics",
        "get_health",
        "get_readiness",
    }
)
OPEN = frozenset({"get_metrics", "get_health", "get_readiness"})
"""Operations that need no token. ``get_metrics`` needs none because these tests call from the loopback."""
FOR_EVERYBODY = OPEN | {"who_am_i"}
LISTS = frozenset({"list_clusters"})
ADD_IMAGES = frozenset({"list_images", "add_image", "upload_image"})
"""Operations that every user may call: list visible images, and add own images."""
READ_IMAGES = frozenset({"list_images", "get_image", "get_image_content", "verify_image"})
"""Operations that return only images that the caller may see."""
READ_VPN = frozenset(
    {"list_vpn_profiles", "get_vpn_profile", "revoke_vpn_profile", "list_vpn_connections", "list_vpn_invitations"}
    | {"list_ssh_certificates", "revoke_ssh_certificate", "list_ssh_connections"}
)
PERSONAL = frozenset({"create_ssh_certificate"})
"""Operations for a cluster's owner and for invited users, but not for operators."""
READ_SITES = frozenset({"list_sites", "get_site", "get_pool"})
READ_TOPOLOGY = frozenset({"get_topology", "get_site_topology", "get_preparation", "list_elements", "get_element"})

OWN: dict[Role, frozenset[str]] = {
    Role.USER: FOR_EVERYBODY
    | LISTS
    | READ_SITES
    | {"put_cluster", "get_cluster", "delete_cluster", "extend_lease", "share_network", "unshare_network"}
    | {
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "list_guests",
        "get_guest",
        "put_guest_power",
        "verify_cluster",
    }
    | ADD_IMAGES
    | READ_IMAGES
    | {"share_image", "remove_image"}
    | READ_VPN
    | {"create_vpn_profile", "invite_vpn_user", "withdraw_vpn_invitation", "get_ssh_access", "create_ssh_certificate"}
    | {"list_publications", "publish_guest", "unpublish_guest"}
    | {"get_audit", "get_quota", "list_keys", "add_key", "remove_key"},
    Role.SITE_ADMINISTRATOR: FOR_EVERYBODY
    | LISTS
    | READ_SITES
    | READ_TOPOLOGY
    | {
        "get_cluster",
        "delete_cluster",
        "get_audit",
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "list_guests",
        "get_guest",
        "put_guest_power",
    }
    | {
        "verify_cluster",
        "put_pool",
        "preview_pool",
        "say_clean",
        "verify_site",
        "put_site_topology",
        "preview_site_topology",
    }
    | ADD_IMAGES
    | READ_IMAGES
    | READ_VPN
    | {"certify_image", "revoke_certification"}
    | {"get_difference", "reconcile_element", "list_ports", "adopt_ports", "release_ports", "declare_element_clean"},
    Role.OPERATOR: EVERY_CALL - PERSONAL,
    Role.AGENT: FOR_EVERYBODY
    | LISTS
    | READ_IMAGES
    | {
        "get_cluster",
        "delete_cluster",
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "list_guests",
        "get_guest",
    }
    | {"get_element", "get_wanted", "confirm_element", "report_trouble", "report_drift", "report_capacity"}
    | {"list_waiting_sessions", "upload_clone", "report_vpn_connections", "report_destination_uses", "report_traffic"}
    | {"report_ssh_connections"},
    Role.SCHEDULER: FOR_EVERYBODY
    | LISTS
    | READ_SITES
    | READ_TOPOLOGY
    | {
        "put_cluster",
        "get_cluster",
        "delete_cluster",
        "extend_lease",
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "list_guests",
        "get_guest",
    }
    | {"list_asked_jobs", "answer_for_job", "list_quotas", "get_quota"},
    Role.JOB_STARTER: FOR_EVERYBODY
    | LISTS
    | {
        "get_cluster",
        "delete_cluster",
        "get_peers",
        "list_destination_uses",
        "list_traffic",
        "list_guests",
        "get_guest",
    },
}
"""By role: the operations permitted on alice's cluster (host brno-h1), site brno, and the elements of this site.

``put_cluster`` is missing for a job starter, because the batch server has not confirmed the job.
"""

OTHERS: dict[Role, frozenset[str]] = {
    Role.USER: FOR_EVERYBODY | LISTS | READ_SITES | ADD_IMAGES,
    Role.SITE_ADMINISTRATOR: FOR_EVERYBODY | LISTS | READ_SITES | READ_TOPOLOGY | ADD_IMAGES | READ_IMAGES,
    Role.OPERATOR: EVERY_CALL - PERSONAL,
    Role.AGENT: FOR_EVERYBODY | LISTS | {"list_images"},
    Role.SCHEDULER: OWN[Role.SCHEDULER],
    Role.JOB_STARTER: FOR_EVERYBODY
    | LISTS
    | {"get_cluster", "get_peers", "list_destination_uses", "list_traffic", "list_guests", "get_guest"},
}
"""By role: the operations permitted on bob's cluster (host praha-h1), site praha, and the elements of this site."""

HOLDERS = {
    Role.USER: ("alice",),
    Role.SITE_ADMINISTRATOR: ("ivo", "brno"),
    Role.OPERATOR: ("eva",),
    Role.AGENT: ("brno-h1",),
    Role.SCHEDULER: ("pbs",),
    Role.JOB_STARTER: ("brno-h1",),
}
GATEWAY_OWN = OWN[Role.AGENT] - {"delete_cluster", "get_image", "get_image_content", "verify_image"}
"""The operations permitted to the agent of gateway brno-gw on alice's cluster, site brno and the gateway.

A gateway runs neither jobs nor guests, so its agent may not end clusters or read images.
"""
LAST = ("delete_cluster", "revoke_token")
URL_IMAGE = {
    "sha256": "0" * 64,
    "size": 1,
    "format": "qcow2",
    "architecture": "x86_64",
    "url": "https://example.org/a.qcow2",
}
FINGERPRINT = "SHA256:" + "a" * 43
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
OF_DEVICES = frozenset(
    {"get_difference", "reconcile_element", "list_ports", "adopt_ports", "release_ports", "declare_element_clean"}
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path))
    for owner, image, host in (("alice", "hers", "brno-h1"), ("bob", "his", "praha-h1")):
        ask(installation, "PUT", f"/v1/images/{image}", URL_IMAGE, token=installation.token(Role.USER, owner))
        guests = [{"name": "g1", "host": host, "image": image}]
        installation.put(image, spec(owner=owner, guests=guests, vpn=True))
    installation.settle()
    yield installation
    installation.close()


def target(call: str, path: str, *, own: bool, agent: str = "h1") -> tuple[str, object]:
    """Return the path and the body of a call.

    With ``own``, the call concerns alice's cluster and site brno; otherwise, bob's cluster and site praha.
    """
    site, owner, key = ("brno", "alice", "hers") if own else ("praha", "bob", "his")
    element = f"{site}-sw1" if call in OF_DEVICES else f"{site}-{agent}"
    part = {"site": three_sites().site(Name(site)).model_dump(mode="json")}
    key = f"new-{key}" if call == "put_cluster" else key
    bodies: dict[str, object] = {
        "put_cluster": {"spec": spec(f"{site}-h1", owner=owner).model_dump(mode="json")},
        "extend_lease": {"seconds": 60},
        "put_guest_power": {"power": "off"},
        "put_topology": three_sites().model_dump(mode="json"),
        "preview_topology": three_sites().model_dump(mode="json"),
        "put_site_topology": part,
        "preview_site_topology": part,
        "put_pool": {"vlans": "100-139"},
        "preview_pool": {"vlans": "100-139"},
        "say_clean": {"reason": "x"},
        "declare_element_clean": {"reason": "x"},
        "adopt_ports": {"ports": {"p2": {"mode": "access", "access": 20}}},
        "release_ports": {"ports": ["p2"]},
        "confirm_element": {"revision": 1},
        "report_drift": {"revision": 1},
        "report_capacity": {"cpus": 8, "memory_mb": 16384},
        "report_trouble": {"revision": 1, "message": "x"},
        "create_token": {"name": owner, "role": "operator"},
        "put_quota": {"clusters": 7},
        "add_key": {"key": PUBLIC_KEY},
        "create_ssh_certificate": {"public_key": PUBLIC_KEY},
        "publish_guest": {"guest": "g1", "port": 22},
        "answer_for_job": {"runs": False},
        "create_vpn_profile": {"device": "laptop", "csr": CSR},
        "report_vpn_connections": {"connections": []},
        "report_destination_uses": {"uses": []},
        "report_traffic": {"segments": []},
        "report_ssh_connections": {"connections": []},
        "add_image": URL_IMAGE,
        "share_image": {"add": ["mallory"]},
    }
    queries = {"list_asked_jobs": "?server=torque", "get_audit": f"?cluster={key}"}
    content = f"?sha256={'0' * 64}&size=1&format=qcow2&architecture=x86_64"
    queries |= {"upload_image": content, "upload_clone": content}
    of_element = path.startswith("/v1/elements")
    path_values = {
        "key": key,
        "guest": "g1",
        "name": element if of_element else key if path.startswith("/v1/images") else site,
        "site": site,
        "vlan": "100",
        "port": "22",
        "serial": "7",
        "id": "aaaaaaaa",
        "session": "aaaaaaaa",
        "profile": "aaaaaaaa",
        "fingerprint": FINGERPRINT,
    }
    user = "mallory" if "shares" in path or "invitations" in path else owner
    return path.format(**path_values, user=user) + queries.get(call, ""), bodies.get(call)


@cache
def calls() -> tuple[tuple[str, str, str], ...]:
    operations = [
        (call["operationId"], method.upper(), path)
        for path, methods in openapi_document()["paths"].items()
        for method, call in methods.items()
    ]
    return tuple(sorted(operations, key=lambda operation: operation[0] in LAST))


def is_denied(answer: httpx.Response) -> bool:
    """Return whether SBF denied the call to this caller.

    Denials are:

    - status 401 or 403;
    - the problem that the batch server has not confirmed the job;
    - the message that the cluster or image is unknown. SBF sends this message to callers that may not see the resource.
    """
    if answer.is_success:
        return False
    status, kind, detail = problem(answer)
    return status in {401, 403} or kind == "job-unproven" or detail in UNKNOWN


KEYS = ("hers", "his", "new-hers", "new-his")
UNKNOWN = {f"cluster {key} is not known; list the clusters: virtcloud cluster list" for key in KEYS} | {
    f"image {name} is not known; list the images: virtcloud image list" for name in KEYS
}


def permitted_calls(world: World, token: str, *, own: bool, agent: str = "h1") -> set[str]:

    async def run() -> set[str]:
        allowed = set()
        async with client(world.service, token) as http:
            for call, method, path in calls():
                url, document = target(call, path, own=own, agent=agent)
                answer = await http.request(method, url, json=document, headers={"if-match": "*"})
                allowed |= set() if is_denied(answer) else {call}
        return allowed

    return asyncio.run(run())


def read_resources(world: World) -> list[object]:
    paths = ("clusters", "sites", "elements", "topology", "tokens", "quotas", "audit?limit=1000")

    async def run() -> list[object]:
        async with client(world.service) as http:
            return [(await http.get(f"/v1/{path}")).json() for path in paths]

    return asyncio.run(run())


def test_the_tables_contain_every_operation() -> None:
    assert {name for name, _, _ in calls()} == EVERY_CALL


@pytest.mark.parametrize("role", Role)
def test_a_stolen_token_has_only_its_roles_rights(world: World, role: Role) -> None:
    assert permitted_calls(world, world.token(role, *HOLDERS[role]), own=True) == OWN[role]


@pytest.mark.parametrize("role", Role)
def test_a_stolen_token_cannot_act_on_others_resources(world: World, role: Role) -> None:
    assert permitted_calls(world, world.token(role, *HOLDERS[role]), own=False) == OTHERS[role]


@pytest.mark.parametrize("role", [Role.USER, Role.SITE_ADMINISTRATOR, Role.AGENT, Role.JOB_STARTER])
def test_denied_calls_on_others_resources_change_nothing(world: World, role: Role) -> None:
    token = world.token(role, *HOLDERS[role])
    ask(world, "GET", "/v1/whoami", token=token)  # SBF records the use of a token only once per hour
    before = read_resources(world)
    permitted_calls(world, token, own=False)
    assert read_resources(world) == before


def test_without_a_token_only_open_operations_are_answered(world: World) -> None:
    assert permitted_calls(world, "", own=True) == OPEN


@pytest.mark.parametrize(
    "path", ["/static-docs/../v1/whoami", "/static-docs/%2e%2e/%2e%2e/settings.py", "/docs/../v1/whoami"]
)
def test_open_paths_with_dots_lead_to_no_other_path(world: World, path: str) -> None:
    assert ask(world, "GET", path, token="").status_code in {401, 404}


def test_a_users_dry_run_shows_nothing_of_others(world: World) -> None:
    world.put("secret", spec("brno-h2", "praha-h1", owner="bob"))
    world.put("gone", spec("brno-h2", owner="bob"))
    world.delete("gone")
    token = world.token(Role.USER, "alice")
    answer = ask(world, "PUT", "/v1/clusters/new?dry_run=true", body("brno-h2"), token=token).json()
    (vlan,) = answer["vlans"].values()
    host, switch = answer["elements"]
    assert ([segment["key"] for segment in host["host"]["add"]], host["host"]["remove"]) == (["new"], [])
    assert (switch["switch"]["create"], switch["switch"]["add"]) == (str(vlan), {"p2": str(vlan)})
    assert switch["switch"]["remove"] == {}


def test_a_dry_run_of_a_join_shows_only_that_network(world: World) -> None:
    world.put("shared", spec("brno-h1", owner="bob", shares_with=["alice"]))
    world.put("secret", spec("brno-h2", owner="bob"))
    wanted = {"spec": spec(hosts=["brno-h2"], joins="shared").model_dump(mode="json")}
    token = world.token(Role.USER, "alice")
    answer = ask(world, "PUT", "/v1/clusters/new?dry_run=true", wanted, token=token).json()
    vlan = str(world.view("shared").vlans[Name("brno")])
    host, switch = answer["elements"]
    assert [segment["vlan"] for segment in host["host"]["add"]] == [int(vlan)]
    assert (switch["switch"]["create"], switch["switch"]["add"]) == (vlan, {"p1": vlan, "p2": vlan})


def test_an_operators_dry_run_shows_everything(world: World) -> None:
    world.put("secret", spec("brno-h2", owner="bob"))
    answer = ask(world, "PUT", "/v1/clusters/new?dry_run=true", body("brno-h2")).json()
    assert [segment["key"] for segment in answer["elements"][0]["host"]["add"]] == ["new", "secret"]


def test_a_site_administrator_reads_no_audit_rows_of_other_sites(world: World) -> None:
    token = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    world.delete("his")
    world.settle()
    his, hers = world.view("his").id, world.put("his", spec("brno-h2")).view.id
    assert his != hers
    rows = ask(world, "GET", "/v1/audit?cluster=his", token=token).json()
    assert {row["cluster_id"] for row in rows} == {hers}
    assert {row["cluster_id"] for row in ask(world, "GET", "/v1/audit?cluster=his").json()} == {his, hers}


def test_a_gateways_token_reads_and_reports_for_itself(world: World) -> None:
    assert permitted_calls(world, world.token(Role.AGENT, "brno-gw"), own=True, agent="gw") == GATEWAY_OWN


def test_a_gateways_token_permits_nothing_at_other_sites(world: World) -> None:
    assert permitted_calls(world, world.token(Role.AGENT, "brno-gw"), own=False, agent="gw") == OTHERS[Role.AGENT]
