import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec

from virtcloud.model.access import Role

REASON = {"reason": "praha-sw1 was scrapped"}
CLEAN = "/v1/sites/praha/quarantine/100/clean"


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def quarantine_cluster(world: World, *elements: str) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    for name in elements:
        world.switches[name].cut_off = True
        world.dead_hosts.add(name)
    world.delete("demo")
    world.settle()
    world.clock.advance(61)
    world.settle()
    assert world.view("demo").quarantined


def test_a_site_lists_quarantined_ids_with_their_causes(world: World) -> None:
    quarantine_cluster(world, "praha-sw1")
    found = ask(world, "GET", "/v1/sites/brno").json()
    assert found["quarantined"] == "100"
    assert [{**entry, "cluster_id": "…"} for entry in found["quarantine"]] == [
        {
            "vlan": 100,
            "cluster": "demo",
            "cluster_id": "…",
            "since": "2026-01-01T00:00:00Z",
            "elements": {"praha-sw1": "praha"},
        }
    ]


def test_a_declaration_releases_the_id_at_all_sites(world: World) -> None:
    quarantine_cluster(world, "praha-sw1")
    answer = ask(world, "POST", CLEAN, REASON)
    assert (answer.status_code, answer.json()["quarantine"], answer.json()["free"]) == (200, [], "100-139")
    assert str(world.site("brno").free) == "100-139"
    view = world.view("demo")
    assert (view.quarantined, view.vlans) == (False, {})


def test_a_declaration_is_audited_with_name_and_reason(world: World) -> None:
    quarantine_cluster(world, "praha-sw1")
    ask(world, "POST", CLEAN, REASON, token=world.token(Role.SITE_ADMINISTRATOR, "eva", "praha"))
    (row,) = world.audit("number_said_clean")
    assert (row.who, row.why, row.element, row.cluster_id) == (
        "eva",
        "VLAN 100 at praha: praha-sw1 was scrapped",
        "praha-sw1",
        world.view("demo").id,
    )
    assert [row.who for row in world.audit("number_freed")] == ["eva", "eva"]


def test_a_declaration_covers_only_its_site(world: World) -> None:
    quarantine_cluster(world, "praha-sw1", "brno-h1")
    found = ask(world, "POST", CLEAN, REASON).json()
    assert [entry["elements"] for entry in found["quarantine"]] == [{"brno-h1": "brno"}]
    assert ask(world, "POST", "/v1/sites/brno/quarantine/100/clean", REASON).json()["quarantine"] == []
    assert str(world.site("praha").free) == "100-139"


def test_a_declaration_and_a_confirmation_release_the_id(world: World) -> None:
    quarantine_cluster(world, "praha-sw1", "brno-h1")
    ask(world, "POST", CLEAN, REASON)
    world.dead_hosts.clear()
    world.settle()
    assert str(world.site("praha").free) == "100-139"


def test_a_returning_element_removes_its_remaining_configuration(world: World) -> None:
    quarantine_cluster(world, "praha-sw1")
    ask(world, "POST", CLEAN, REASON)
    assert world.switches["praha-sw1"].carried() == {"p1": "100", "uplink": "100"}
    world.switches["praha-sw1"].cut_off = False
    world.settle()
    assert world.switches["praha-sw1"].carried() == {}


def test_remaining_configuration_does_not_activate_a_new_cluster(world: World) -> None:
    world.put_pool("praha", "100")
    quarantine_cluster(world, "praha-sw1")
    ask(world, "POST", CLEAN, REASON)
    world.put("next", spec("praha-h2"))
    world.settle()
    assert world.view("next").state == "configuring"
    world.switches["praha-sw1"].cut_off = False
    world.settle()
    assert world.view("next").state == "active"
    assert world.switches["praha-sw1"].carried() == {"p2": "100"}


def test_repeating_a_declaration_changes_nothing(world: World) -> None:
    quarantine_cluster(world, "praha-sw1", "brno-h1")
    first = ask(world, "POST", CLEAN, REASON).json()
    rows = len(world.audit())
    assert ask(world, "POST", CLEAN, REASON).json() == first
    assert len(world.audit()) == rows
    assert ask(world, "POST", "/v1/sites/praha/quarantine/120/clean", REASON).status_code == 200


def test_a_vlan_id_in_use_cannot_be_declared_clean(world: World) -> None:
    world.put("demo", spec("praha-h1"))
    assert problem(ask(world, "POST", CLEAN, REASON)) == (
        409,
        "conflict",
        (
            "VLAN 100 at praha is not in quarantine: cluster demo uses the VLAN ID and is configuring; "
            "end the cluster, and wait until it has ended"
        ),
    )


@pytest.mark.parametrize(
    ("path", "word", "status"),
    [
        ("/v1/sites/ostrava/quarantine/100/clean", REASON, 404),
        ("/v1/sites/praha/quarantine/4095/clean", REASON, 422),
        (CLEAN, {}, 422),
        (CLEAN, {"by": "eva", "reason": "scrapped"}, 422),
        (CLEAN, {"reason": "a\0b"}, 422),
        (CLEAN, {"reason": "a\x1b[2Jb"}, 422),
    ],
)
def test_an_impossible_declaration_is_refused(world: World, path: str, word: dict[str, str], status: int) -> None:
    assert problem(ask(world, "POST", path, word))[0] == status
