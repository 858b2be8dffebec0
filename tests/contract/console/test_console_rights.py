"""Tests that the console shows the same data to each role as the API."""

import base64
import html
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from support.sbf_fakes.console_browser import ConsoleBrowser, logged_in, text_of
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.console import reading
from sbf_service.console.pages import elements
from virtcloud.model.access import Role


@pytest.fixture
def installed(world: World) -> World:
    world.put("hers", spec("brno-h1", "praha-h1", owner="alice"))
    world.put("his", spec("praha-h2", owner="bob"))
    world.settle()
    return world


def visit(world: World, role: Role, name: str, *sites: str) -> ConsoleBrowser:
    return logged_in(world, role, name, *sites)


def test_a_user_sees_own_clusters_only(installed: World) -> None:
    page = visit(installed, Role.USER, "alice").get("/console/clusters").text
    assert ("clusters/hers" in page, "clusters/his" in page) == (True, False)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("", "No cluster that you may see is running."),
        ("?ended=true", "No cluster meets these conditions."),
        ("?site=praha", "No cluster meets these conditions."),
    ],
)
def test_an_empty_list_of_clusters_has_an_explanation(installed: World, query: str, sentence: str) -> None:
    answer = visit(installed, Role.USER, "carol").get(f"/console/clusters{query}")
    assert (answer.status_code, sentence in text_of(answer)) == (200, True)


def test_a_site_administrator_is_not_advised_to_create_clusters(installed: World) -> None:
    page = text_of(visit(installed, Role.SITE_ADMINISTRATOR, "ivo", "plzen").get("/console/clusters"))
    assert ("No cluster that you may see is running." in page, "Create one" in page) == (True, False)


def test_a_site_administrator_sees_clusters_of_the_site(installed: World) -> None:
    page = visit(installed, Role.SITE_ADMINISTRATOR, "ivo", "brno").get("/console/clusters").text
    assert ("clusters/hers" in page, "clusters/his" in page) == (True, False)


@pytest.mark.parametrize(("sites", "numbers"), [(("brno",), ["1", "1"]), (("brno", "praha"), ["1", "2"])])
def test_a_site_administrator_sees_counts_of_own_sites(
    installed: World, sites: tuple[str, ...], numbers: list[str]
) -> None:
    answer = visit(installed, Role.SITE_ADMINISTRATOR, "ivo", *sites).get("/console/")
    assert answer.status_code == 200, text_of(answer)
    found = dict(re.findall(r"<title>Site (\w+): (\d+) cluster", answer.text)) or dict(
        re.findall(r'sites/(\w+)">.*?class="number">(\d+)<', answer.text, re.DOTALL)
    )
    assert [found["brno"], found["praha"]] == numbers


def test_a_user_cannot_read_the_state_of_sites(installed: World) -> None:
    """A user may not read elements, so the console cannot report whether a site works."""
    answer = visit(installed, Role.USER, "alice").get("/console/")
    assert ("fine" in text_of(answer), answer.text.count('class="glyph')) == (False, 0)


def test_an_operator_sees_all_clusters(installed: World) -> None:
    page = visit(installed, Role.OPERATOR, "eva").get("/console/clusters").text
    assert ("clusters/hers" in page, "clusters/his" in page) == (True, True)


@pytest.mark.parametrize("key", ["his", "unknown"])
def test_another_users_cluster_looks_like_an_unknown_cluster(installed: World, key: str) -> None:
    answer = visit(installed, Role.USER, "alice").get(f"/console/clusters/{key}")
    assert (answer.status_code, f"cluster {key} is not known" in text_of(answer)) == (404, True)


@pytest.mark.parametrize("path", ["/console/elements", "/console/elements/brno-sw1", "/console/troubles"])
def test_a_missing_right_is_named_with_its_remedy(installed: World, path: str) -> None:
    answer = visit(installed, Role.USER, "alice").get(path)
    assert answer.status_code == 403
    assert "the action requires" in text_of(answer)
    assert "ask an operator of SBF for a token" in text_of(answer)


@pytest.mark.parametrize("path", ["/console/", "/console/sites/praha", "/console/clusters"])
def test_no_page_shows_a_user_the_clusters_of_others(installed: World, path: str) -> None:
    page = visit(installed, Role.USER, "alice").get(path)
    assert (page.status_code, "his" in text_of(page).split(), "bob" in page.text) == (200, False, False)


@pytest.mark.parametrize(
    "path", ["sites/nowhere", "elements/nothing", "clusters/nothing", "clusters/%00", "pages", "sites/-", "a%0Ab"]
)
def test_an_unknown_path_or_object_gets_an_error_page(installed: World, path: str) -> None:
    answer = visit(installed, Role.OPERATOR, "eva").get(f"/console/{path}")
    assert (answer.status_code in {404, 422}, answer.headers["content-type"]) == (True, "text/html; charset=utf-8")
    assert "Go to the overview" in answer.text


def test_an_unknown_method_gets_an_error_page(installed: World) -> None:
    answer = visit(installed, Role.OPERATOR, "eva").request("PUT", "/console/clusters")
    assert (answer.status_code, answer.headers["content-type"]) == (405, "text/html; charset=utf-8")
    assert "does not accept the method PUT" in text_of(answer)
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR])
def test_the_error_names_an_unknown_id_of_a_known_cluster(installed: World, role: Role) -> None:
    answer = visit(installed, role, "alice").get("/console/clusters/hers?id=none")
    assert "cluster hers with the ID none is not known" in text_of(answer)


def test_pages_of_a_user_contain_exactly_the_users_clusters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of the next page names no other user's cluster."""
    monkeypatch.setattr(reading, "PAGE_SIZE", 2)
    for number in range(5):
        world.put(f"hers{number}", spec("brno-h1", owner="alice"))
        world.put(f"his{number}", spec("praha-h2", owner="bob"))
    browser, path, seen = visit(world, Role.USER, "alice"), "/console/clusters", []
    while path:
        page = browser.get(path).text
        seen.append(re.findall(r"/console/clusters/(\w+)\"", page))
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = html.unescape(found[1]) if found else ""
        cursor = parse_qs(urlsplit(path).query).get("cursor", [""])[0]
        assert "his" not in base64.urlsafe_b64decode(cursor + "==").decode()
    assert seen == [["hers4", "hers3"], ["hers2", "hers1"], ["hers0"]]


def test_pages_of_elements_contain_each_element_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "PAGE_SIZE", 4)
    browser, path, seen = visit(world, Role.OPERATOR, "eva"), "?kind=&site=", []
    while path:
        page = browser.get(f"/console/elements{path}").text
        seen += re.findall(r"/console/elements/([\w-]+)\"", page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = html.unescape(found[1]) if found else ""
    assert seen == sorted({element.name for site in world.topology().sites for element in site.elements})


@pytest.mark.parametrize("query", ["elements?cursor=x", "clusters?cursor=x", "elements?kind=x", "elements?site=-"])
def test_a_bad_page_of_a_list_is_explained(installed: World, query: str) -> None:
    answer = visit(installed, Role.OPERATOR, "eva").get(f"/console/{query}")
    assert (answer.status_code, "expected" in text_of(answer)) == (422, True)


def test_a_site_administrator_sees_an_earlier_cluster_of_the_site(world: World) -> None:
    """A later cluster with the same key is at another site."""
    world.put("demo", spec("brno-h1"))
    world.settle()
    former = world.delete("demo")
    world.settle()
    world.put("demo", spec("praha-h1"))
    browser = logged_in(world, Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert browser.get(f"/console/clusters/demo?id={former.id}").status_code == 200


@pytest.mark.parametrize("path", ["/console/", "/console/pools"])
def test_a_page_number_beyond_the_last_shows_the_last_page(installed: World, path: str) -> None:
    browser = visit(installed, Role.OPERATOR, "eva")
    assert browser.get(f"{path}?page=9").text.count("/console/sites/brno") == browser.get(path).text.count(
        "/console/sites/brno"
    )


def test_the_start_page_shows_users_no_count_of_transports(installed: World) -> None:
    page = visit(installed, Role.USER, "alice").get("/console/").text
    assert ("of 40 VLAN IDs used" in page, "transports" in page) == (True, False)


def test_a_user_gets_no_link_to_the_list_of_troubles(world: World) -> None:
    names = [f"site{number}" for number in range(12)]
    world.put_topology(three_sites(sites=[{"name": name} for name in names], links=[]))
    page = visit(world, Role.USER, "alice").get("/console/").text
    assert ("2 more troubles" in page, "/console/troubles" in page) == (True, False)


def test_the_page_of_a_site_links_to_all_its_clusters(installed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, link = visit(installed, Role.OPERATOR, "eva"), 'href="/console/clusters?site=praha"'
    complete = browser.get("/console/sites/praha").text
    monkeypatch.setattr(reading, "PAGE_SIZE", 1)
    assert (link in complete, link in browser.get("/console/sites/praha").text) == (False, True)
