import re
from pathlib import Path

import pytest
from support.sbf_fakes.console_browser import logged_in, text_of
from support.sbf_fakes.world import World, make_world, spec, three_edges, three_sites

from sbf_service.store.elements import error_reports
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role

LIT = re.compile(r'<polyline class="line \w+ lit" [^>]*><title>([^<]*)</title>')
BOXES = re.compile(r"<title>(?:host|switch|edge) ([\w-]+)[ ,]")


@pytest.fixture
def installed(world: World) -> World:
    world.put("hers", spec("brno-h1", "praha-h2", owner="alice"))
    world.settle()
    return world


def test_the_path_of_a_cluster_is_highlighted(installed: World) -> None:
    page = logged_in(installed).get("/console/clusters/hers").text
    assert sorted(LIT.findall(page)) == [
        "brno-sw1:uplink on transport core",
        "link brno-sw1:p1 to brno-h1:eth0",
        "link praha-sw1:p2 to praha-h2:eth0",
        "praha-sw1:uplink on transport core",
        "transport core (qinq) carries the cluster",
    ]


def test_a_user_sees_only_elements_of_the_path(installed: World) -> None:
    page = logged_in(installed, Role.USER, "alice").get("/console/clusters/hers").text
    assert set(BOXES.findall(page)) == {"brno-h1", "brno-sw1", "praha-h2", "praha-sw1"}
    assert "/console/elements/" not in page


def test_an_administrator_sees_whole_sites(installed: World) -> None:
    page = logged_in(installed).get("/console/clusters/hers").text
    assert set(BOXES.findall(page)) >= {"brno-h2", "praha-h1"}


def test_elements_outside_a_clusters_path_have_their_own_state(installed: World) -> None:
    """An operator may read all elements, so the drawing shows each element's true state."""
    with installed.store.change() as unit:
        error_reports.record_agent_error(unit, "brno-h2", "broken", {}, installed.service.settings.timing.drain)
    titles = re.findall(r"<title>(host [^<]*)</title>", logged_in(installed).get("/console/clusters/hers").text)
    assert [title for title in titles if title.startswith(("host brno-h1,", "host brno-h2,"))] == [
        "host brno-h1, port eth0: fine",
        "host brno-h2, port eth0: trouble",
    ]


def test_an_ended_cluster_has_no_path(installed: World) -> None:
    installed.delete("hers")
    installed.settle()
    page = logged_in(installed).get("/console/clusters/hers")
    assert (page.status_code, LIT.findall(page.text), "released" in text_of(page)) == (200, [], True)


def test_a_cluster_with_an_unreadable_spec_has_no_path(installed: World) -> None:
    with installed.store.change() as unit:
        row = unit.session.get_one(ClusterRow, installed.view("hers").id)
        row.spec, row.resolved = "{", None
    page = logged_in(installed).get("/console/clusters/hers")
    shown = "cannot read the stored spec" in text_of(page)
    assert (page.status_code, LIT.findall(page.text), shown) == (200, [], True)


def test_elements_that_left_the_topology_have_no_link(installed: World) -> None:
    installed.delete("hers")
    installed.settle()
    browser = logged_in(installed)
    assert 'href="/console/elements/brno-h1"' in browser.get("/console/clusters/hers").text
    installed.put_topology(three_sites(sites=[{"name": name} for name in ("brno", "praha", "plzen")], links=[]))
    page = browser.get("/console/clusters/hers").text
    assert "brno-h1" in page
    assert 'href="/console/elements/' not in page


def test_a_path_through_provider_edges_reaches_the_transport(tmp_path: Path) -> None:
    edges = make_world(tmp_path)
    edges.furnish(topology=three_edges())
    edges.put("hers", spec("brno-h1", "praha-h1", owner="alice"))
    page = logged_in(edges).get("/console/clusters/hers").text
    edges.close()
    assert {"link brno-sw1:uplink to brno-pe1:ac", "brno-pe1:core on transport evpn"} <= {
        title.replace("link brno-pe1:ac to brno-sw1:uplink", "link brno-sw1:uplink to brno-pe1:ac")
        for title in LIT.findall(page)
    }


def test_a_pool_shows_the_state_of_each_vlan_id(installed: World) -> None:
    vlan = int(installed.view("hers").vlans["brno"])
    page = logged_in(installed).get("/console/sites/brno").text
    assert f"<title>VLAN {vlan}: claimed by cluster hers</title>" in page
    assert page.count('<g class="cell free"><title>') == 39


def test_a_pool_names_clusters_only_to_their_readers(installed: World) -> None:
    page = logged_in(installed, Role.USER, "bob").get("/console/sites/brno").text
    assert ('<g class="cell claimed"><title>' in page, "hers" in page) == (True, False)


def test_the_life_of_a_cluster_lists_its_events(installed: World) -> None:
    page = text_of(logged_in(installed, Role.USER, "alice").get("/console/clusters/hers"))
    assert page.index("cluster created") < page.index("cluster active")


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("/console/", 'id="site-table"'),
        ("/console/sites/brno", 'id="elements"'),
        ("/console/clusters/hers", 'id="elements"'),
    ],
)
def test_every_drawing_links_to_its_table(installed: World, path: str, table: str) -> None:
    page = logged_in(installed).get(path).text
    target = re.search(r'class="skip-drawing" href="#([^"]*)"', page)
    assert target is not None
    assert f'id="{target[1]}"' == table
    assert table in page


def test_names_in_addresses_are_escaped(world: World) -> None:
    answer = logged_in(world).get("/console/clusters/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert (answer.status_code in {404, 422}, "<script>alert" in answer.text) == (True, False)


def test_messages_of_devices_are_escaped(world: World) -> None:
    world.put("hers", spec("brno-h1", owner="alice"))
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    with world.store.change() as unit:
        error_reports.record_agent_error(unit, "brno-h1", evil, {}, world.service.settings.timing.drain)
    for role, name, paths in (
        (Role.OPERATOR, "eva", ("", "troubles", "elements/brno-h1", "sites/brno", "clusters/hers")),
        (Role.USER, "alice", ("clusters/hers",)),
    ):
        browser = logged_in(world, role, name)
        for path in paths:
            page = browser.get(f"/console/{path}").text
            assert ("&lt;script&gt;alert(1)" in page, "<script>alert" in page, "<img src=x" in page) == (
                True,
                False,
                False,
            )
