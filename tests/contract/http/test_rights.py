import pytest
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.openapi_document import openapi_document
from support.sbf_fakes.vpn_world import CSR
from support.sbf_fakes.world import World, spec, three_sites

from virtcloud.model.access import Role

CLUSTER = "/v1/clusters/demo"


UNKNOWN = (404, "not-found", "cluster demo is not known; list the clusters: virtcloud cluster list")


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("GET", CLUSTER, None),
        ("GET", f"{CLUSTER}?after=1&wait=30", None),
        ("DELETE", CLUSTER, None),
        ("POST", f"{CLUSTER}/lease", {"seconds": 60}),
        ("GET", "/v1/audit?cluster=demo", None),
    ],
)
def test_another_users_cluster_is_not_found(
    world: World, method: str, path: str, document: dict[str, object] | None
) -> None:
    bob = world.token(Role.USER, "bob")
    before = problem(ask(world, method, path, document, token=bob))
    world.put("demo", spec("brno-h1"))
    assert problem(ask(world, method, path, document, token=bob)) == before == UNKNOWN


def test_a_user_creates_clusters_for_itself_only(world: World) -> None:
    alice, bob = world.token(Role.USER, "alice"), world.token(Role.USER, "bob")
    assert problem(ask(world, "PUT", CLUSTER, body("brno-h1"), token=bob)) == (
        403,
        "forbidden",
        (
            "bob (user) may not create a cluster of alice: the action requires its owner (alice), an operator or "
            "a scheduler"
        ),
    )
    assert ask(world, "PUT", CLUSTER, body("brno-h1"), token=alice).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        (
            "GET",
            "/v1/audit?cluster=demo",
            "may not read the audit log of any cluster or element: the action requires its owner",
        ),
        (
            "POST",
            "/v1/elements/brno-sw/reconcile",
            "may not reconcile any element: the action requires a site administrator",
        ),
    ],
)
def test_a_denial_of_an_action_names_its_target(world: World, method: str, path: str, message: str) -> None:
    refusal = problem(ask(world, method, path, token=world.token(Role.SCHEDULER, "pbs")))
    assert (refusal[0], refusal[2].startswith(f"pbs (scheduler) {message}")) == (403, True)


def test_a_later_attempt_cannot_take_over_a_key(world: World) -> None:
    """If a higher attempt number could take over a key, a user could end another user's cluster with this key."""
    world.put("demo", spec("brno-h1"), attempt=1)
    wanted = {"spec": spec("brno-h2", owner="bob").model_dump(mode="json"), "attempt": 9}
    assert problem(ask(world, "PUT", CLUSTER, wanted, token=world.token(Role.USER, "bob"))) == (
        409,
        "conflict",
        "the key demo belongs to another owner until its cluster has ended: choose another key",
    )
    assert world.view("demo").state == "configuring"


def test_pages_contain_only_visible_clusters(world: World) -> None:
    """If pages counted invisible clusters, a page could be empty although later pages have visible clusters."""
    for key, host in (("a", "brno-h1"), ("b", "brno-h2"), ("c", "praha-h1"), ("d", "praha-h1")):
        world.put(key, spec(host, owner="bob" if host == "praha-h1" else "alice"))
        world.clock.advance(1)
    tokens = [
        world.token(Role.USER, "alice"),
        world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno"),
        world.token(Role.AGENT, "brno-h2"),
        world.token(Role.SCHEDULER, "pbs"),
    ]
    path = "/v1/clusters?ended=true&limit=1"
    assert [[cluster["key"] for cluster in ask(world, "GET", path, token=token).json()] for token in tokens] == [
        ["b"],
        ["b"],
        ["b"],
        ["d"],
    ]


def test_lists_contain_only_visible_entries(world: World) -> None:
    for key, host, owner in (("a", "brno-h1", "alice"), ("b", "brno-h2", "bob"), ("c", "praha-h1", "bob")):
        world.put(key, spec(host, owner=owner))
    tokens = [
        world.token(Role.USER, "alice"),
        world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno"),
        world.token(Role.SCHEDULER, "pbs"),
        world.token(Role.AGENT, "brno-h2"),
    ]
    lists = [[cluster["key"] for cluster in ask(world, "GET", "/v1/clusters", token=token).json()] for token in tokens]
    assert lists == [["a"], ["a", "b"], ["a", "b", "c"], ["b"]]
    assert problem(ask(world, "GET", "/v1/clusters?owner=bob", token=tokens[0]))[:2] == (403, "forbidden")


def test_an_agent_reports_for_its_own_element_only(world: World) -> None:
    token = world.token(Role.AGENT, "brno-h1")
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted", token=token).status_code == 200
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1}, token=token).status_code == 204
    for call in ("confirmed", "trouble", "drifted"):
        document = {"revision": 1, **({"message": "x"} if call == "trouble" else {})}
        assert problem(ask(world, "POST", f"/v1/elements/brno-h2/{call}", document, token=token)) == (
            403,
            "forbidden",
            (
                "brno-h1 (agent) may not report for element brno-h2: the action requires the agent of brno-h2 or an "
                "operator"
            ),
        )
    assert ask(world, "GET", "/v1/elements/brno-h2/wanted", token=token).status_code == 403
    assert ask(world, "GET", "/v1/elements/brno-h1", token=token).status_code == 200
    assert ask(world, "GET", "/v1/elements", token=token).status_code == 403


def test_a_site_administrator_changes_its_sites_pool_only(world: World) -> None:
    token = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "100-150"}, token=token).status_code == 200
    assert ask(world, "PUT", "/v1/sites/praha/pool", {"vlans": "100-150"}, token=token).status_code == 403
    assert world.audit("pool_put")[-1].who == "ivo"


def test_site_administrators_end_only_clusters_with_hosts_at_their_site(world: World) -> None:
    world.put("far", spec("praha-h1"))
    world.put("near", spec("brno-h1", "praha-h1"))
    token = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert ask(world, "DELETE", "/v1/clusters/near", token=token).status_code == 202
    assert ask(world, "DELETE", "/v1/clusters/far", token=token).status_code == 404
    assert (world.view("near").reason, world.view("far").state) == ("ended by ivo", "configuring")
    world.put("third", spec("brno-h2"))
    answer = problem(ask(world, "POST", "/v1/clusters/third/lease", {"seconds": 60}, token=token))
    assert answer[:2] == (403, "forbidden")


def test_an_agent_sees_and_ends_only_clusters_of_its_element(world: World) -> None:
    world.put("far", spec("praha-h1"))
    world.put("near", spec("brno-h1", "praha-h1"))
    token = world.token(Role.AGENT, "brno-h1")
    statuses = {key: ask(world, "GET", f"/v1/clusters/{key}", token=token).status_code for key in ("near", "far")}
    assert statuses == {"near": 200, "far": 404}
    assert ask(world, "DELETE", "/v1/clusters/near", token=token).status_code == 202
    assert ask(world, "DELETE", "/v1/clusters/far", token=token).status_code == 404
    assert (world.view("near").reason, world.view("far").state) == ("ended by agent@brno-h1", "configuring")
    answer = problem(ask(world, "POST", "/v1/clusters/near/lease", {"seconds": 60}, token=token))
    assert answer[:2] == (403, "forbidden")


def test_a_user_does_not_see_who_quarantines_a_vlan_id(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.delete("demo")
    world.clock.advance(61)
    world.settle()
    answer = ask(world, "GET", "/v1/sites/brno", token=world.token(Role.USER, "bob"))
    assert (answer.json()["quarantined"], answer.json()["quarantine"], "demo" in answer.text) == ("100", [], False)
    assert ask(world, "GET", "/v1/sites", token=world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")).text.count(
        '"demo"'
    )


def test_denials_are_logged_and_counted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    bob = world.token(Role.USER, "bob")
    ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "1"}, token=bob)
    ask(world, "GET", "/v1/elements", token="vc_aaaaaaaa_" + "A" * 43)
    lines = [record.message for record in caplog.records if record.message.startswith("denied ")]
    assert [line.partition(" request=")[0] for line in lines] == [
        "denied who=bob action=set_pool subject='site brno' address=127.0.0.1",
        (
            "denied why='this SBF has no such token: check the token and the address of SBF' path=/v1/elements "
            "address=127.0.0.1"
        ),
    ]
    metrics = ask(world, "GET", "/metrics").text
    assert 'virtcloud_denied_total{problem="forbidden"} 1.0' in metrics
    assert 'virtcloud_denied_total{problem="unauthenticated"} 1.0' in metrics
    assert "AAAA" not in caplog.text


OPEN_CALLS = {"get_health", "get_readiness", "get_metrics"}


FOR_EVERYBODY = {"who_am_i"}


IMAGE_CONTENT = {"sha256": "0" * 64, "size": 1000, "format": "qcow2", "architecture": "x86_64"}


ABOUT_CLUSTERS = {"list_clusters": (200, []), "get_cluster": UNKNOWN, "delete_cluster": UNKNOWN} | dict.fromkeys(
    ("get_peers", "list_destination_uses", "list_traffic", "list_guests", "get_guest"), UNKNOWN
)
"""By operation: the answers to an agent's calls about a cluster without a placement on the agent's element."""


ABOUT_IMAGES = {"list_images"} | {"get_image", "get_image_content", "verify_image", "share_image", "remove_image"}
"""Operations on images. The agent in ``test_every_call_is_denied_to_an_unrelated_caller`` sees no image, because no
cluster on the agent's element uses an image.
"""


PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"


BODIES: dict[str, object] = {
    "put_cluster": body("brno-h1"),
    "extend_lease": {"seconds": 60},
    "put_pool": {"vlans": "100"},
    "preview_pool": {"vlans": "100"},
    "say_clean": {"reason": "x"},
    "declare_element_clean": {"reason": "x"},
    "adopt_ports": {"ports": {"p1": {"mode": "access", "access": 20}}},
    "release_ports": {"ports": ["p1"]},
    "put_topology": three_sites().model_dump(mode="json"),
    "preview_topology": three_sites().model_dump(mode="json"),
    "confirm_element": {"revision": 1},
    "report_drift": {"revision": 1},
    "report_capacity": {"cpus": 8, "memory_mb": 16384},
    "report_trouble": {"revision": 1, "message": "x"},
    "create_token": {"name": "alice", "role": "operator"},
    "put_quota": {},
    "add_key": {"key": PUBLIC_KEY},
    "create_ssh_certificate": {"public_key": PUBLIC_KEY},
    "publish_guest": {"guest": "g1", "port": 22},
    "put_site_topology": {"site": three_sites().sites[0].model_dump(mode="json")},
    "preview_site_topology": {"site": three_sites().sites[0].model_dump(mode="json")},
    "answer_for_job": {"runs": False},
    "put_guest_power": {"power": "off"},
    "add_image": IMAGE_CONTENT | {"url": "http://127.0.0.1/image"},
    "share_image": {"everybody": True},
    "create_vpn_profile": {"device": "laptop", "csr": CSR},
    "report_vpn_connections": {"connections": []},
    "report_destination_uses": {"uses": []},
    "report_traffic": {"segments": []},
    "report_ssh_connections": {"connections": []},
}


QUERIES = {
    "list_asked_jobs": "?server=torque",
    **dict.fromkeys(
        ("upload_image", "upload_clone"), "?" + "&".join(f"{key}={value}" for key, value in IMAGE_CONTENT.items())
    ),
}


PATH_VALUES = {"key": "demo", "name": "brno-h1", "vlan": "100", "id": "aaaaaaaa", "user": "alice"} | {
    "guest": "g1",
    "port": "22",
    "serial": "7",
    "session": "aaaaaaaa",
    "fingerprint": f"SHA256:{'a' * 43}",
    "site": "brno",
    "profile": "aaaaaaaa",
}


def test_every_call_is_denied_to_an_unrelated_caller(world: World) -> None:
    """The caller is the agent of a host without clusters.

    A new operation needs a right in ``sbf_service/domain/rights.py`` and an entry in the tables above.
    """
    token = world.token(Role.AGENT, "plzen-h2")
    world.put("demo", spec("brno-h1"))
    statuses, answers = {}, {}
    for path, calls in openapi_document()["paths"].items():
        for method, call in calls.items():
            name = call["operationId"]
            answer = ask(
                world, method.upper(), path.format(**PATH_VALUES) + QUERIES.get(name, ""), BODIES.get(name), token=token
            )
            statuses[name] = (answer.status_code, "security" in call)
            if name in ABOUT_IMAGES:
                assert answer.status_code in {403, 404} or answer.json() == []
            if name in ABOUT_CLUSTERS:
                answers[name] = (answer.status_code, []) if answer.json() == [] else problem(answer)
    assert {name for name, (_, secured) in statuses.items() if not secured} == OPEN_CALLS
    assert answers == ABOUT_CLUSTERS
    allowed = OPEN_CALLS | FOR_EVERYBODY | ABOUT_IMAGES | set(ABOUT_CLUSTERS)
    assert {name: status for name, (status, _) in statuses.items() if name not in allowed and status != 403} == {}


def test_a_job_starter_creates_clusters_on_its_element_only(world: World) -> None:
    token = world.token(Role.JOB_STARTER, "brno-h1")
    wanted = {"spec": spec("brno-h1", "praha-h1", owner="alice").model_dump(mode="json")}
    assert ask(world, "PUT", "/v1/clusters/7.torque", wanted, token=token).status_code == 503
    ask(world, "PUT", "/v1/jobs/7.torque", {"runs": True, "owner": "alice", "hosts": ["brno-h1", "praha-h1"]})
    assert ask(world, "PUT", "/v1/clusters/7.torque", wanted, token=token).status_code == 201
    elsewhere = {"spec": spec("praha-h1", owner="alice").model_dump(mode="json")}
    assert problem(ask(world, "PUT", "/v1/clusters/8.torque", elsewhere, token=token)) == (
        403,
        "forbidden",
        (
            "brno-h1 (job-starter) may not create a cluster of alice: "
            "the action requires its owner (alice), an operator or a scheduler"
        ),
    )
    assert ask(world, "DELETE", "/v1/clusters/7.torque", token=token).status_code == 202
