from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from support.sbf_fakes.console_server import university
from support.sbf_fakes.world import site, spec, three_edges

from sbf_service.console.drawing.pool_strip import MAX_CELLS, VlanUse, draw_pool
from sbf_service.console.drawing.scene import Box, Scene, assign_lanes, shorten
from sbf_service.console.drawing.site_layout import MapContents
from sbf_service.console.drawing.site_map import MAX_WIDTH, draw_sites
from sbf_service.console.drawing.tiles import Tile, draw_tiles
from sbf_service.console.drawing.timeline import WIDTH, draw_timeline
from sbf_service.console.troubles import Level
from virtcloud.model.changes import AuditEntry
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element_views import SiteView
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortRef
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

START = datetime(2026, 1, 1, tzinfo=UTC)


def draw(topology: Topology, *lit: str, only: frozenset[Name] | None = None) -> Scene:
    """Draw a topology's sites. Highlight the ports ``lit``. If ``only`` is not None, draw only these elements."""
    ports = frozenset(PortRef(port) for port in lit)
    return draw_sites(MapContents(topology, topology.sites, {}, ports, lambda kind, name: f"/{kind}/{name}", only))


def large_site() -> Topology:
    described = site("brno", 40)
    ports = [f"p{number}" for number in range(1, 5)]
    described["switches"] = [
        {"name": f"brno-sw{n}", "platform": "fake", "ports": [*ports, "up", "down"]} for n in range(1, 13)
    ]
    described["attachments"] = [{"transport": "core", "port": "brno-sw1:up"}]
    links = [{"a": f"brno-h{n}:eth0", "b": f"brno-sw{(n - 1) // 4 + 1}:p{(n - 1) % 4 + 1}"} for n in range(1, 41)]
    links += [{"a": f"brno-sw{n}:down", "b": f"brno-sw{n + 1}:up"} for n in range(1, 12)]
    transports = [{"name": "core", "kind": "qinq", "s_tag": 2000}]
    return Topology.model_validate({"name": "x", "transports": transports, "sites": [described], "links": links})


def cover(first: Box, second: Box) -> bool:
    across = first.x < second.x + second.width and second.x < first.x + first.width
    return across and first.y < second.y + second.height and second.y < first.y + first.height


@pytest.mark.parametrize(
    "topology", [university(), large_site(), three_edges(hosts=3)], ids=["three", "large", "edges"]
)
def test_no_element_covers_another(topology: Topology) -> None:
    scene = draw(topology)
    assert len(scene.boxes) == len(topology.elements)
    assert [(a.label, b.label) for a, b in combinations(scene.boxes, 2) if cover(a, b)] == []
    assert [(a.label, b.label) for a, b in combinations(scene.frames, 2) if cover(a, b)] == []


@pytest.mark.parametrize(
    "topology", [university(), large_site(), three_edges(hosts=3)], ids=["three", "large", "edges"]
)
def test_every_shape_is_within_the_drawing(topology: Topology) -> None:
    scene = draw(topology)
    assert scene.width <= MAX_WIDTH
    corners = [(box.x + box.width, box.y + box.height) for box in (*scene.frames, *scene.boxes)]
    points = [*corners, *(point for line in scene.lines for point in line.points)]
    assert all(0 <= x <= scene.width and 0 <= y <= scene.height for x, y in points)


def test_every_link_is_drawn_once() -> None:
    topology = university()
    drawn = [line.title for line in draw(topology).lines if line.title.startswith("link ")]
    assert len(drawn) == len(set(drawn)) == len(topology.links)


def test_only_links_with_both_ports_on_the_path_are_highlighted() -> None:
    scene = draw(university(), "brno-sw1:Gi1/0/1", "brno-h1:eth0", "brno-sw1:Te1/1/1")
    assert [line.title for line in scene.lines if line.lit] == ["link brno-sw1:Gi1/0/1 to brno-h1:eth0"]
    assert {box.label for box in scene.boxes if box.lit} == {"brno-sw1", "brno-h1"}


def test_a_drawing_may_show_some_elements_only() -> None:
    only = frozenset({Name("brno-sw1"), Name("brno-h2")})
    assert [box.label for box in draw(university(), only=only).boxes] == ["brno-sw1", "brno-h2"]


def test_the_trouble_of_a_pool_marks_its_site() -> None:
    topology = university()
    levels = dict.fromkeys(topology.elements, Level.OK)
    own = {Name("praha"): Level.WARNING}
    contents = MapContents(topology, topology.sites, levels, frozenset(), lambda *_: None, site_levels=own)
    marks = {frame.label: frame.level for frame in draw_sites(contents).frames}
    assert marks == {"brno": Level.OK, "praha": Level.WARNING, "plzen": Level.OK}


@pytest.mark.parametrize("count", [1, 5, 30, 100, 101])
def test_tiles_of_many_sites_do_not_overlap(count: int) -> None:
    tiles = [Tile(f"site-{n}", Level.OK, n, n, 40, ("core",), f"/sites/site-{n}") for n in range(count)]
    scene = draw_tiles(tiles, ["core", "lambda"])
    assert [box.path for box in scene.boxes] == [tile.path for tile in tiles]
    assert not any(cover(a, b) for a, b in combinations(scene.boxes, 2))
    assert max(box.x + box.width for box in scene.boxes) <= scene.width
    assert min(box.width for box in scene.boxes) >= 90


def test_each_tile_shows_the_use_of_its_pool() -> None:
    """The coloured part of a tile's gauge shows the used fraction of the pool."""
    scene = draw_tiles([Tile("brno", Level.OK, 1, 10, 40, (), "/sites/brno")], [])
    (tile,), (whole, used) = scene.boxes, scene.gauges
    assert tile.x < whole.x < used.x + used.width < tile.x + tile.width
    assert used.width == whole.width / 4


def test_a_long_name_leaves_room_for_the_tiles_state() -> None:
    tiles = [Tile("university-of-somewhere", Level.OK, 1, 1, 40, (), f"/sites/{n}") for n in range(100)]
    (box, *_) = draw_tiles(tiles, []).boxes
    assert len(box.label) * 8 < box.width - box.indent - 19


def test_lanes_of_overlapping_spans_differ() -> None:
    lanes = assign_lanes([(0, 10), (5, 15), (20, 30), (-1000, 25)])
    assert [lane.number for lane in lanes] == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("text", "width", "short"), [("brno-h1", 80, "brno-h1"), ("abcdefghijklmnop", 66, "abcde…mnop")]
)
def test_a_long_name_keeps_its_beginning_and_end(text: str, width: float, short: str) -> None:
    assert shorten(text, width) == short


def pool(vlans: str, claimed: str = "", quarantined: str = "", free: str = "") -> SiteView:
    sets = {"pool": vlans, "claimed": claimed, "quarantined": quarantined, "free": free}
    return SiteView(name=Name("brno"), **{key: VlanSet.parse(text) for key, text in sets.items()})


def test_each_vlan_id_has_one_state() -> None:
    drawn = draw_pool(pool("100-109", "100-101", "102", "103-108"), {100: "demo"})
    assert {use: str(vlans) for use, vlans in drawn.sets.items()} == {
        VlanUse.FREE: "103-108",
        VlanUse.CLAIMED: "100-101",
        VlanUse.QUARANTINED: "102",
        VlanUse.EXCLUDED: "109",
    }
    assert [cell.label for cell in drawn.cells] == [str(vlan) for vlan in range(100, 110)]
    assert drawn.cells[0].title == "VLAN 100: claimed by cluster demo"


def test_a_large_pool_has_few_shapes() -> None:
    drawn = draw_pool(pool("2-4000", "150,200-210", free="2-149,151-199,211-4000"), {})
    assert len(drawn.cells) < MAX_CELLS
    assert "VLAN 200 to 210: claimed" in {cell.title for cell in drawn.cells}


def view(state: ClusterState) -> ClusterView:
    return ClusterView(
        key=ClusterKey("demo"),
        id="x",
        attempt=0,
        version=1,
        state=state,
        vlans={},
        lease_ends=START + timedelta(hours=8),
        spec=spec("brno-h1"),
    )


def entry(number: int, what: str, seconds: float, cluster_id: str = "x") -> AuditEntry:
    return AuditEntry(id=number, at=START + timedelta(seconds=seconds), who="alice", what=what, cluster_id=cluster_id)


def test_the_timeline_of_a_cluster_shows_its_states() -> None:
    events = [entry(1, "cluster_created", 0), entry(2, "cluster_active", 20), entry(3, "lease_extended", 30)]
    events += [entry(4, "cluster_degraded", 40), entry(5, "cluster_active", 9, "earlier cluster")]
    drawn = draw_timeline(view(ClusterState.DEGRADED), events, START + timedelta(seconds=100))
    assert drawn is not None
    assert [period.state for period in drawn.periods] == ["configuring", "active", "degraded"]
    assert [event.id for event in drawn.events] == [1, 2, 3, 4]
    ends = [period.x + period.width for period in drawn.periods]
    assert ends[0] == pytest.approx(drawn.periods[1].x, abs=0.2)
    assert ends[-1] < WIDTH


def test_a_cluster_without_events_has_no_timeline() -> None:
    assert draw_timeline(view(ClusterState.ACTIVE), [], START) is None


def test_a_cluster_with_many_states_fits_into_the_bar() -> None:
    states = [entry(2 + n, f"cluster_{('active', 'degraded')[n % 2]}", 1000 + n) for n in range(198)]
    drawn = draw_timeline(view(ClusterState.RELEASED), [entry(1, "cluster_created", 0), *states], START)
    assert drawn is not None
    assert min(period.width for period in drawn.periods) > 0
    assert drawn.periods[-1].x + drawn.periods[-1].width == pytest.approx(WIDTH, abs=1)


def test_a_history_without_its_beginning_shows_no_request() -> None:
    events = [entry(300, "cluster_degraded", 50), entry(301, "cluster_active", 60)]
    drawn = draw_timeline(view(ClusterState.ACTIVE), events, START + timedelta(seconds=100))
    assert drawn is not None
    assert [period.state for period in drawn.periods] == ["degraded", "active"]
    assert drawn.marks[0][1] == "oldest event shown: 2026-01-01 00:00:50 UTC"
