"""Tests of lists that the API returns page by page."""

import base64
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.pool import QueuePool
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.http import pages
from sbf_service.store import pages as store_pages
from sbf_service.store.unit_of_work import record_audit
from virtcloud.model.access import Role
from virtcloud.model.views import ClusterView

LISTS = ("clusters?order=oldest", "clusters?order=newest", "elements", "sites", "tokens", "images", "quotas")
KEYS = [f"c{number}" for number in range(5)]


@pytest.fixture
def filled(world: World) -> World:
    return fill(world)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = make_world(tmp_path_factory.mktemp("pages"))
    made.furnish()
    yield fill(made)
    made.close()


def fill(world: World) -> World:
    for key in KEYS:
        world.put(key, spec("brno-h1", owner="alice"))
    for key in ("his1", "his2"):
        world.put(key, spec("praha-h2", owner="bob"))
    world.put("over", spec("plzen-h1", owner="carol"))
    world.delete("over")
    world.settle()
    for name in ("beta", "alpha"):
        source = {"sha256": "0" * 64, "size": 10, "format": "qcow2", "architecture": "x86_64"}
        added = ask(world, "PUT", f"/v1/images/{name}", source | {"url": f"https://example.org/{name}"})
        assert added.status_code == 201, added.text
    for user in ("alice", "bob", "carol"):
        ask(world, "PUT", f"/v1/quotas/{user}", {"clusters": 9})
        world.token(Role.USER, user)
    return world


def follow(world: World, path: str, token: str | None = None) -> Iterator[httpx.Response]:
    address: str | None = f"/v1/{path}"
    seen: set[str] = set()
    while address is not None:
        assert address not in seen, "a page is its own successor"
        seen.add(address)
        answer = ask(world, "GET", address, token=token)
        assert answer.status_code == 200, answer.text
        yield answer
        address = answer.links.get("next", {}).get("url")


def identify(row: dict[str, object]) -> object:
    return row.get("key") or row.get("id") or row.get("name") or row.get("user")


def read_names(world: World, path: str, token: str | None = None) -> list[object]:
    return [identify(row) for page in follow(world, path, token) for row in page.json()]


def with_limit(path: str, limit: int) -> str:
    return f"{path}{'&' if '?' in path else '?'}limit={limit}"


def test_pages_contain_each_row_of_the_list_once(filled: World) -> None:
    for path in LISTS:
        whole = [identify(row) for row in ask(filled, "GET", f"/v1/{path.partition('?')[0]}").json()]
        for limit in (1, 2, 1000):
            paged = read_names(filled, with_limit(path, limit))
            assert len(paged) == len(set(paged)) > 0
            assert sorted(map(str, paged)) == sorted(map(str, whole))


def test_clusters_are_in_the_order_of_creation(example: World) -> None:
    assert read_names(example, "clusters?order=oldest&limit=2") == [*KEYS, "his1", "his2"]
    assert read_names(example, "clusters?order=newest&limit=2") == ["his2", "his1", *reversed(KEYS)]
    assert read_names(example, "clusters?order=newest&limit=3&ended=true")[:2] == ["over", "his2"]


def test_rows_added_and_removed_between_pages_shift_no_row(filled: World) -> None:
    pages_read = follow(filled, "clusters?order=oldest&limit=2")
    first = next(pages_read).json()
    filled.delete("c0")
    filled.delete("his1")
    filled.settle()
    filled.put("late", spec("brno-h2"))
    rest = [identify(row) for page in pages_read for row in page.json()]
    assert ([identify(row) for row in first], rest) == (["c0", "c1"], ["c2", "c3", "c4", "his2", "late"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 4), deleted=st.sets(st.sampled_from(["x", "y", "m", "q", "a0", "zz"])))
def test_images_appear_once_in_pages_while_others_are_deleted(world: World, limit: int, deleted: set[str]) -> None:
    source = {
        "sha256": "0" * 64,
        "size": 10,
        "format": "qcow2",
        "architecture": "x86_64",
        "url": "https://example.org/",
    }
    everything = {"x", "y", "m", "q", "a0", "zz"}
    for name in everything:
        ask(world, "PUT", f"/v1/images/{name}", source)
    found = []
    for number, page in enumerate(follow(world, f"images?limit={limit}")):
        found += [row["name"] for row in page.json()]
        if not number:
            for name in deleted:
                ask(world, "DELETE", f"/v1/images/{name}")
    assert found == sorted(set(found))
    assert everything - deleted <= set(found)


CLUSTER_FILTERS = {
    "owner=bob": ["his1", "his2"],
    "site=praha": ["his1", "his2"],
    "element=brno-h1": KEYS,
    "state=active&owner=alice": KEYS,
    "state=released": ["over"],
    "ended=true&site=plzen": ["over"],
    "network=c3": ["c3"],
    "network=unknown": [],
}


def test_filters_select_clusters_in_pages(filled: World) -> None:
    for query, expected in CLUSTER_FILTERS.items():
        assert read_names(filled, f"clusters?order=oldest&limit=2&{query}") == expected, query


OTHER_FILTERS = {
    "elements?site=praha": ["praha-h1", "praha-h2", "praha-sw1"],
    "elements?kind=switch": ["brno-sw1", "plzen-sw1", "praha-sw1"],
    "elements?troubled=true": [],
    "images?owner=root": ["alpha", "beta"],
    "images?owner=bob": [],
}


def test_filters_select_elements_and_images(filled: World) -> None:
    for path, expected in OTHER_FILTERS.items():
        assert read_names(filled, with_limit(path, 2)) == expected, path
        assert read_names(filled, path) == expected, path


def test_tokens_are_found_by_holder_and_role(example: World) -> None:
    example.token(Role.OPERATOR, "eva")
    holders = [row["name"] for row in ask(example, "GET", "/v1/tokens?role=operator&limit=5").json()]
    assert (holders, len(read_names(example, "tokens?name=bob&limit=1"))) == (["eva"], 1)


VISIBLE = (
    (Role.USER, "alice", (), KEYS),
    (Role.USER, "bob", (), ["his1", "his2"]),
    (Role.SITE_ADMINISTRATOR, "ivo", ("praha",), ["his1", "his2"]),
    (Role.AGENT, "brno-h1", (), KEYS),
    (Role.AGENT, "brno-h2", (), []),
    (Role.OPERATOR, "eva", (), [*KEYS, "his1", "his2"]),
)
QUERIES = ("", "?order=oldest&limit=2", "?order=oldest&limit=2&ended=true&state=active")


def test_pages_contain_exactly_the_clusters_of_the_role(filled: World) -> None:
    for role, name, sites, expected in VISIBLE:
        token = filled.token(role, name, *sites)
        for query in QUERIES:
            assert read_names(filled, f"clusters{query}", token) == expected, (role, query)


def test_the_cursor_of_another_user_shows_nothing_of_others(example: World) -> None:
    alice, bob = example.token(Role.USER, "alice"), example.token(Role.USER, "bob")
    for limit in (1, 2):
        page = next(follow(example, f"clusters?order=oldest&limit={limit}", alice))
        address = page.links["next"]["url"]
        assert [row["key"] for row in ask(example, "GET", address, token=bob).json()] == ["his1", "his2"][:limit]
        answer = ask(example, "GET", f"{address}&owner=alice", token=bob)
        assert (answer.status_code, "c1" in answer.text) == (403, False)


def test_no_cursor_contains_the_key_of_an_invisible_cluster(example: World) -> None:
    for role, name, sites in ((Role.USER, "alice", ()), (Role.SITE_ADMINISTRATOR, "ivo", ("brno",))):
        for page in follow(example, "clusters?order=oldest&limit=1", example.token(role, name, *sites)):
            for text in parse_qs(urlsplit(page.links.get("next", {}).get("url", "")).query).get("cursor", []):
                assert "his" not in base64.urlsafe_b64decode(text + "==").decode()


def cursor_of(*values: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


CURSORS = (
    "",
    "x",
    "%F0%9F%98%80",
    "!!!!",
    cursor_of(),
    cursor_of("elements"),
    cursor_of("elements", 3),
    cursor_of("elements", "a", "b"),
    cursor_of("elements", "a\x00"),
    cursor_of("elements", "a" * 301),
    cursor_of("elements", None),
    cursor_of("elements", {"a": 1}),
    cursor_of("tokens", 0, "a"),
    base64.urlsafe_b64encode(b"\xff\xfe[").decode(),
    base64.urlsafe_b64encode(b'["elements","\\ud800"]').decode().rstrip("="),
)


def test_an_unusable_cursor_is_explained(world: World) -> None:
    for cursor in CURSORS:
        status, slug, detail = problem(ask(world, "GET", f"/v1/elements?limit=2&cursor={cursor}"))
        assert (status, slug, detail.startswith("cursor: expected a cursor of ")) == (422, "bad-input", True), cursor
    assert ask(world, "GET", f"/v1/elements?limit=2&cursor={'A' * 2001}").status_code == 422


def test_a_cursor_with_an_impossible_time_is_bad_input(world: World) -> None:
    for moment in (-1, 2**63, 2**70, 253_370_764_800_000_000, "now"):
        cursor = cursor_of("clusters, oldest first", moment, "a", 0, 0)
        assert problem(ask(world, "GET", f"/v1/clusters?order=oldest&cursor={cursor}"))[:2] == (422, "bad-input")


def test_a_cursor_with_too_large_a_number_is_bad_input(world: World) -> None:
    """PostgreSQL refuses to compare a larger number with the columns, which have 32 bits."""
    for turn, attempt, expected in ((2**31, 0, 422), (0, 2**31, 422), (2**31 - 1, 2**31 - 1, 200)):
        cursor = cursor_of("clusters, oldest first", 0, "a", turn, attempt)
        assert ask(world, "GET", f"/v1/clusters?order=oldest&cursor={cursor}").status_code == expected


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "99999999999999999999", "x", ""])
def test_an_impossible_limit_is_explained(example: World, limit: str) -> None:
    for path in (*LISTS, "audit?order=newest"):
        status, slug, detail = problem(ask(example, "GET", f"/v1/{path}{'&' if '?' in path else '?'}limit={limit}"))
        assert (status, slug, detail.startswith("query.limit: expected")) == (422, "bad-input", True), detail


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("clusters?element=brno-h9", "element: expected the name of a known element, got brno-h9: list the names: "),
        ("clusters?site=bruno", "site: expected the name of a known site, got bruno: list the names: "),
        ("elements?site=bruno", "site: expected the name of a known site, got bruno: list the names: "),
        ("audit?element=brno-h9", "element: expected the name of a known element, got brno-h9: list the names: "),
        ("audit?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since: expected a time that is not after"),
        ("clusters?cursor=AAAA", "cursor: expected 'order' with the cursor, got none"),
        ("audit?cursor=AAAA", "cursor: expected 'order' with the cursor, got none"),
    ],
)
def test_a_filter_that_matches_no_possible_row_is_explained(example: World, path: str, message: str) -> None:
    status, slug, detail = problem(ask(example, "GET", f"/v1/{path}"))
    assert (status, slug, detail.startswith(message)) == (422, "bad-input", True), detail


def test_a_user_cannot_ask_whether_an_element_exists(example: World) -> None:
    token = example.token(Role.USER, "alice")
    answers = [ask(example, "GET", f"/v1/clusters?element={name}", token=token) for name in ("praha-sw1", "nothing")]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, []), (200, [])]


def record(world: World, who: str, what: str) -> None:
    with world.service.store.change(who=who) as unit:
        record_audit(unit, what, element="brno-h1")


def test_audit_rows_are_found_by_time_actor_and_element(world: World) -> None:
    for number in range(4):
        record(world, f"u{number % 2}", f"event{number}")
        world.clock.advance(10)
    start = datetime.fromisoformat(ask(world, "GET", "/v1/audit?who=u0&order=oldest").json()[0]["at"])

    def read(query: str) -> list[str]:
        return [row["what"] for page in follow(world, f"audit?limit=1&{query}") for row in page.json()]

    since, until = (f"{start + timedelta(seconds=s):%Y-%m-%dT%H:%M:%S.%fZ}" for s in (10, 20))
    assert read("order=oldest&who=u0") == ["event0", "event2"]
    assert read("order=newest&who=u1") == ["event3", "event1"]
    assert read(f"order=oldest&element=brno-h1&since={since}&until={until}") == ["event1", "event2"]


def test_without_parameters_the_whole_list_is_one_answer(example: World) -> None:
    for path in ("clusters", "elements", "sites", "tokens", "images", "quotas"):
        assert "link" not in ask(example, "GET", f"/v1/{path}").headers
    assert [row["name"] for row in ask(example, "GET", "/v1/sites").json()] == ["brno", "praha", "plzen"]
    assert [row["key"] for row in ask(example, "GET", "/v1/clusters?limit=2").json()] == [*KEYS, "his1", "his2"]
    assert [row["key"] for row in ask(example, "GET", "/v1/clusters?ended=true&limit=2").json()] == ["his2", "over"]


def test_a_whole_list_is_read_in_short_transactions(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_pages, "MAX_PAGE", 2)
    monkeypatch.setattr(store_pages.PagePart.__init__, "__defaults__", (2, None))
    engine, transactions, open_while_formatting = filled.service.store.engine, list[int](), list[int]()
    pool = engine.pool
    event.listen(engine, "begin", lambda _connection: transactions.append(1))
    adapter = pages._list_adapter(ClusterView)

    class Watched:
        def dump_json(self, rows: list[Any], **options: Any) -> bytes:
            assert isinstance(pool, QueuePool)
            open_while_formatting.append(pool.checkedout())
            return adapter.dump_json(rows, **options)

    monkeypatch.setattr(pages, "_list_adapter", lambda _kind: Watched())
    before = len(transactions)
    assert len(ask(filled, "GET", "/v1/clusters").json()) == 7
    assert open_while_formatting == [0, 0, 0, 0]
    assert len(transactions) - before >= 4


@pytest.mark.parametrize(
    "path", ["clusters", "clusters/c1", "elements/brno-h1", "sites", "topology", "sites/brno/topology"]
)
def test_an_unchanged_answer_is_not_sent_again(example: World, path: str) -> None:
    first = ask(example, "GET", f"/v1/{path}")
    again = ask(example, "GET", f"/v1/{path}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = ask(example, "GET", f"/v1/{path}", headers={"if-none-match": '"other", W/"another"'})
    assert (other.status_code, other.content) == (200, first.content)


def test_a_changed_cluster_has_another_entity_tag(filled: World) -> None:
    before = ask(filled, "GET", "/v1/clusters/c1").headers["etag"]
    filled.delete("c1")
    answer = ask(filled, "GET", "/v1/clusters/c1", headers={"if-none-match": before})
    assert (answer.status_code, answer.json()["state"]) == (200, "draining")


def test_a_page_that_is_not_sent_again_keeps_its_link(example: World) -> None:
    first = ask(example, "GET", "/v1/elements?limit=1")
    again = ask(example, "GET", "/v1/elements?limit=1", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.headers["link"]) == (304, first.headers["link"])
