import re

import pytest
from support.sbf_fakes.console_browser import logged_in, text_of
from support.sbf_fakes.world import World, spec

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState


@pytest.fixture
def installed(world: World) -> World:
    world.put("hers", spec("brno-h1", "praha-h1", owner="alice"))
    world.settle()
    return world


@pytest.fixture
def quarantined(installed: World) -> World:
    """Cluster ``hers`` has ended, and its VLAN ID is in quarantine because brno-h1 does not answer."""
    installed.dead_hosts.add("brno-h1")
    installed.delete("hers")
    installed.settle()
    installed.clock.advance(61)
    installed.settle()
    assert installed.site("brno").quarantined
    return installed


def test_an_owner_ends_a_cluster_after_a_confirmation(installed: World) -> None:
    browser, id_ = logged_in(installed, Role.USER, "alice"), installed.view("hers").id
    question = browser.get(f"/console/clusters/hers/delete?id={id_}")
    assert "End cluster hers?" in text_of(question)
    assert installed.view("hers").state is ClusterState.ACTIVE
    answer = browser.post("/console/clusters/hers/delete", id=id_)
    assert (answer.status_code, installed.view("hers").state) == (303, ClusterState.DRAINING)
    assert "SBF removes the cluster now." in text_of(browser.get(answer.headers["location"]))


@pytest.mark.parametrize("path", ["/console/clusters/hers/delete", "/console/clusters/hers/lease"])
def test_other_users_cannot_change_a_cluster(installed: World, path: str) -> None:
    answer = logged_in(installed, Role.USER, "bob").post(path, duration="20h")
    assert (answer.status_code, "cluster hers is not known" in text_of(answer)) == (404, True)
    assert installed.view("hers").state is ClusterState.ACTIVE


@pytest.mark.parametrize("path", ["delete", "lease"])
def test_an_action_needs_the_token_of_the_session(installed: World, path: str) -> None:
    browser = logged_in(installed, Role.USER, "alice")
    before = installed.view("hers")
    answer = browser.request("POST", f"/console/clusters/hers/{path}", {"duration": "20h"})
    assert (answer.status_code, installed.view("hers")) == (403, before)
    assert "ask an operator" not in text_of(answer)


def test_a_late_form_does_not_end_a_later_cluster(installed: World) -> None:
    browser, former = logged_in(installed, Role.USER, "alice"), installed.view("hers").id
    installed.delete("hers")
    installed.settle()
    installed.put("hers", spec("brno-h1", owner="alice"), attempt=1)
    answer = browser.post("/console/clusters/hers/delete", id=former)
    assert (answer.status_code, installed.view("hers").state) == (410, ClusterState.CONFIGURING)


def test_an_owner_extends_the_lease(installed: World) -> None:
    answer = logged_in(installed, Role.USER, "alice").post("/console/clusters/hers/lease", duration="20h")
    assert answer.status_code == 303
    left = installed.view("hers").lease_ends - installed.clock.now
    assert left.total_seconds() == 20 * 3600
    assert installed.audit("lease_extended")[-1].who == "alice"


@pytest.mark.parametrize("duration", ["", "soon", "-4h", "999999999h"])
def test_a_wrong_duration_is_refused_with_an_example(installed: World, duration: str) -> None:
    before = installed.view("hers")
    answer = logged_in(installed, Role.USER, "alice").post("/console/clusters/hers/lease", duration=duration)
    assert (answer.status_code, installed.view("hers")) == (422, before)
    assert "expected" in text_of(answer) or "less than" in text_of(answer)


def test_a_site_administrator_does_not_see_the_form_for_leases(installed: World) -> None:
    page = logged_in(installed, Role.SITE_ADMINISTRATOR, "ivo", "brno").get("/console/clusters/hers").text
    assert ("/clusters/hers/lease" in page, "/clusters/hers/delete" in page) == (False, True)


def test_an_administrator_declares_a_vlan_id_clean(quarantined: World) -> None:
    browser = logged_in(quarantined, Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert "/console/sites/brno/quarantine/100/clean" in browser.get("/console/sites/brno").text
    assert "brno-h1 at brno may still carry VLAN 100" in text_of(
        browser.get("/console/sites/brno/quarantine/100/clean")
    )
    answer = browser.post("/console/sites/brno/quarantine/100/clean", reason="brno-h1 was scrapped")
    assert (answer.status_code, bool(quarantined.site("brno").quarantined)) == (303, False)
    row = quarantined.audit("number_said_clean")[-1]
    assert (row.who, row.why) == ("ivo", "VLAN 100 at brno: brno-h1 was scrapped")


def test_a_declaration_needs_a_reason(quarantined: World) -> None:
    answer = logged_in(quarantined).post("/console/sites/brno/quarantine/100/clean", reason=" ")
    assert (answer.status_code, bool(quarantined.site("brno").quarantined)) == (422, True)
    assert "reason: expected a reason, got a blank text" in text_of(answer)


def test_a_reason_may_have_several_lines(quarantined: World) -> None:
    """Browsers send the lines of a text area with CR LF."""
    path = "/console/sites/brno/quarantine/100/clean"
    assert logged_in(quarantined).post(path, reason="scrapped\r\non Monday").status_code == 303
    assert quarantined.audit("number_said_clean")[-1].why == "VLAN 100 at brno: scrapped\non Monday"


def test_an_administrator_of_another_site_cannot_declare_vlans_clean(quarantined: World) -> None:
    browser = logged_in(quarantined, Role.SITE_ADMINISTRATOR, "petr", "praha")
    assert "quarantine/100/clean" not in browser.get("/console/sites/brno").text
    answer = browser.post("/console/sites/brno/quarantine/100/clean", reason="x")
    assert (answer.status_code, bool(quarantined.site("brno").quarantined)) == (403, True)


def test_the_page_of_troubles_lists_a_quarantine_with_its_remedy(quarantined: World) -> None:
    page = text_of(logged_in(quarantined).get("/console/troubles"))
    assert "VLAN 100 has been in quarantine" in page
    assert "declare the VLAN ID clean on the page of the site" in page


def test_an_operator_reconciles_a_switch(installed: World) -> None:
    browser = logged_in(installed)
    answer = browser.post("/console/elements/brno-sw1/reconcile")
    assert "The device has its wanted state" in text_of(browser.get(answer.headers["location"]))


def test_an_unreachable_switch_is_not_called_correct(installed: World) -> None:
    installed.switches["brno-sw1"].cut_off = True
    browser = logged_in(installed)
    answer = browser.post("/console/elements/brno-sw1/reconcile")
    assert "SBF could not read or correct the device" in text_of(browser.get(answer.headers["location"]))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/console/?page=x", "page: expected a valid integer, got 'x'"),
        ("/console/sites/Brno", "name: expected a name: lower case"),
        ("/console/clusters/hers?id=&done=ended", "id: expected a text that matches pattern"),
    ],
)
def test_a_malformed_address_is_explained(world: World, path: str, message: str) -> None:
    page = text_of(logged_in(world).get(path))
    assert (message in page, "SBF removes" in page) == (True, False)


@pytest.mark.parametrize("path", ["clusters/hers/delete", "clusters/hers/lease", "sites/brno/quarantine/100/clean"])
def test_a_malformed_id_of_a_cluster_is_refused(installed: World, path: str) -> None:
    """PostgreSQL refuses texts that contain the character NUL."""
    answer = logged_in(installed).post(f"/console/{path}", id="a\0b", reason="scrapped", duration="20h")
    assert (answer.status_code, installed.view("hers").state) == (422, ClusterState.ACTIVE)
    assert "id: expected the ID of a cluster" in text_of(answer)


def test_a_second_declaration_changes_nothing(quarantined: World) -> None:
    browser, path = logged_in(quarantined), "/console/sites/brno/quarantine/100/clean"
    first, second = (browser.post(path, reason="scrapped").headers["location"] for _ in range(2))
    assert "was declared clean" in text_of(browser.get(first))
    assert "was not in quarantine" in text_of(browser.get(second))


def test_a_late_declaration_does_not_concern_a_later_cluster(quarantined: World) -> None:
    browser, path = logged_in(quarantined), "/console/sites/brno/quarantine/100/clean"
    found = re.search(r'name="id" value="([^"]+)"', browser.get(path).text)
    assert found
    quarantined.dead_hosts.clear()
    quarantined.settle()
    quarantined.put("later", spec("brno-h1", "praha-h1", owner="alice", vlan=100))
    quarantined.settle()
    quarantined.dead_hosts.add("brno-h1")
    quarantined.delete("later")
    quarantined.settle()
    quarantined.clock.advance(61)
    quarantined.settle()
    answer = browser.post(path, reason="brno-h1 was scrapped", id=found[1])
    assert (answer.status_code, "found the later cluster later" in text_of(answer)) == (409, True)
    assert bool(quarantined.site("brno").quarantined)
    current = re.search(r'name="id" value="([^"]+)"', browser.get(path).text)
    assert current
    assert browser.post(path, reason="brno-h1 was scrapped", id=current[1]).status_code == 303
    assert not quarantined.site("brno").quarantined


def test_the_access_log_names_the_user_of_a_page(installed: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logged_in(installed).post("/console/elements/brno-sw1/reconcile")
    assert "path=/console/elements/brno-sw1/reconcile status=303" in caplog.text
    assert caplog.text.count("who=eva") == 2


def test_an_ended_cluster_cannot_be_ended_again(quarantined: World) -> None:
    browser = logged_in(quarantined, Role.USER, "alice")
    assert "Cluster hers is released. There is nothing to end." in text_of(browser.get("/console/clusters/hers/delete"))
    answer = browser.post("/console/clusters/hers/delete")
    assert "The cluster has ended." in text_of(browser.get(answer.headers["location"]))


def test_an_ended_cluster_shows_no_remaining_lease(quarantined: World) -> None:
    browser = logged_in(quarantined, Role.USER, "alice")
    pages = [text_of(browser.get(f"/console/clusters{path}")) for path in ("/hers", "?ended=true")]
    assert [" in 3h" in page or "Lease ends 2" in page for page in pages] == [False, False]


def test_a_page_names_the_network_and_its_members(installed: World) -> None:
    installed.put("shared", spec("brno-h1", owner="alice", shares_with=("bob",)))
    installed.put("member", spec(owner="bob", joins="shared", hosts=("brno-h2",)))
    browser = logged_in(installed)
    pages = [text_of(browser.get(f"/console/clusters/{key}")) for key in ("shared", "member")]
    assert ("Joined by member of bob" in pages[0], "Network of cluster shared" in pages[1]) == (True, True)


def test_a_failed_cluster_in_quarantine_is_not_called_removed(world: World) -> None:
    world.dead_hosts.add("brno-h1")
    world.put("hers", spec("brno-h1", owner="alice"))
    for seconds in (0, 121, 61):
        world.clock.advance(seconds)
        world.settle()
    assert (world.view("hers").state, world.view("hers").quarantined) == (ClusterState.FAILED, True)
    assert "removed the cluster everywhere" not in text_of(logged_in(world).get("/console/clusters/hers"))
