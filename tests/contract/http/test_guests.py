import time
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec

from sbf_service.store.elements.error_reports import record_error
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.guests import GuestView

GUESTS = "/v1/clusters/demo/guests"
WAIT_S = 0.3


@pytest.fixture
def demo(world: World) -> World:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    return world


def power(
    world: World, power: str, resets: int | None = None, guest: str = "g1", token: str | None = None
) -> httpx.Response:
    return ask(world, "PUT", f"{GUESTS}/{guest}/power", {"power": power, "resets": resets}, token=token)


def wanted_powers(world: World, host: str = "brno-h1") -> list[tuple[str, str | None, int | None]]:
    return [(g.name, g.power, g.starts) for segment in world.wanted_of_host(host).segments for g in segment.guests]


def test_a_stopped_guest_is_off_at_its_host_only(demo: World) -> None:
    assert power(demo, "off").json()["power"] == "off"
    assert wanted_powers(demo) == [("g1", "off", None)]
    assert wanted_powers(demo, "praha-h1") == [("g2", None, None)]


def test_hosts_of_unchanged_guests_need_no_power_support(demo: World) -> None:
    power(demo, "off")
    requires = {host: demo.wanted_of_host(host).segments[0].requires for host in ("brno-h1", "praha-h1")}
    assert requires == {"brno-h1": ("guest-power",), "praha-h1": ()}


def test_a_cluster_with_a_stopped_guest_stays_active(demo: World) -> None:
    power(demo, "off")
    assert demo.view("demo").state == ClusterState.ACTIVE
    demo.settle()
    assert demo.view("demo").state == ClusterState.ACTIVE


def test_a_guest_is_confirmed_when_its_host_confirms(demo: World) -> None:
    stopped = power(demo, "off").json()
    assert stopped["confirmed_revision"] == stopped["wanted_revision"] - 1
    demo.confirm_hosts()
    shown = ask(demo, "GET", f"{GUESTS}/g1?after={stopped['wanted_revision'] - 1}&wait=30").json()
    assert shown["confirmed_revision"] == stopped["wanted_revision"]


def test_a_repeated_stop_changes_nothing(demo: World) -> None:
    first = power(demo, "off").json()
    assert power(demo, "off").json() == first
    assert [row.what for row in demo.audit("guest_stopped")] == ["guest_stopped"]


def test_a_repeated_reset_resets_once(demo: World) -> None:
    first = power(demo, "on", 1).json()
    assert power(demo, "on", 1).json() == first
    assert wanted_powers(demo) == [("g1", None, 1)]
    assert len(demo.audit("guest_reset")) == 1


def test_a_reset_that_another_caller_overtook_is_refused(demo: World) -> None:
    power(demo, "on", 1)
    power(demo, "on", 2)
    assert problem(power(demo, "on", 1))[:2] == (409, "conflict")
    assert wanted_powers(demo) == [("g1", None, 2)]


def test_a_stopped_guest_cannot_be_reset(demo: World) -> None:
    power(demo, "off")
    assert problem(power(demo, "on", 1)) == (
        409,
        "conflict",
        "guest g1 is stopped and cannot be reset: start it (virtcloud guest start)",
    )


def test_a_started_guest_keeps_its_number_of_resets(demo: World) -> None:
    power(demo, "on", 1)
    power(demo, "off")
    power(demo, "on")
    assert wanted_powers(demo) == [("g1", None, 1)]


def test_the_audit_log_names_caller_guest_and_host(demo: World) -> None:
    power(demo, "off", token=demo.token(Role.USER, "alice"))
    row = demo.audit("guest_stopped")[0]
    assert (row.who, row.why, row.element, row.cluster_id) == ("alice", "guest g1", "brno-h1", demo.view("demo").id)


def test_an_unknown_guest_is_answered_with_the_known_guests(demo: World) -> None:
    assert problem(power(demo, "off", guest="g9")) == (
        404,
        "not-found",
        "cluster demo has no guest g9; its guests: g1, g2",
    )


def test_a_site_administrator_stops_guests_of_own_hosts_only(demo: World) -> None:
    token = demo.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert power(demo, "off", token=token).status_code == 200
    status, kind, detail = problem(power(demo, "off", guest="g2", token=token))
    assert (status, kind) == (403, "forbidden")
    assert "guest g2 of cluster demo: the action requires its owner (alice), a site administrator of praha" in detail


def test_another_users_guest_is_not_known(demo: World) -> None:
    answer = power(demo, "off", token=demo.token(Role.USER, "bob"))
    assert problem(answer) == (404, "not-found", "cluster demo is not known; list the clusters: virtcloud cluster list")
    assert wanted_powers(demo) == [("g1", None, None)]


def test_a_members_guest_is_stopped_in_the_joined_network(demo: World) -> None:
    demo.put("more", spec("brno-h1", joins="demo", guests=[{"name": "m1", "host": "brno-h1", "image": "debian"}]))
    demo.settle()
    ask(demo, "PUT", "/v1/clusters/more/guests/m1/power", {"power": "off"})
    assert wanted_powers(demo) == [("g1", None, None), ("m1", "off", None)]


def test_guests_of_an_ended_cluster_are_refused(demo: World) -> None:
    demo.delete("demo")
    assert problem(power(demo, "off")) == (
        409,
        "conflict",
        "cluster demo is draining, and its guests are removed: create a new cluster",
    )


def test_a_hosts_error_is_shown_while_the_guest_waits(demo: World) -> None:
    power(demo, "off")
    ask(demo, "POST", "/v1/elements/brno-h1/trouble", {"revision": 1, "message": "libvirt does not answer"})
    listed = ask(demo, "GET", GUESTS).json()
    assert [guest["trouble"] for guest in listed] == ["libvirt does not answer", None]


def test_an_ended_guest_degrades_its_own_cluster_only(world: World) -> None:
    """The agent first confirms the host's revision, but reports the ended guest's cluster as incomplete.

    The agent confirms this cluster only when the restarted guest has run for long enough.
    """
    world.put("c", spec("brno-h1"))
    world.put("d", spec("brno-h1", owner="bob"))
    world.settle()
    revision = ask(world, "GET", "/v1/elements/brno-h1").json()["wanted_revision"]
    ended = {world.view("c").id: "guest n1 ended"}
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": revision, "incomplete": ended})
    (trouble,) = [part.trouble for part in world.view("c").placements if part.element == "brno-h1"]
    assert (world.view("c").state, trouble, world.view("d").state) == ("degraded", "guest n1 ended", "active")
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": revision})
    assert world.view("c").state == "active"


def test_a_guest_whose_image_is_fetched_is_not_confirmed(demo: World) -> None:
    """The host confirms the revision, but reports the cluster as incomplete. A stopped guest needs no image."""
    view = power(demo, "on", 1).json()
    confirm_without_demo(demo, view["wanted_revision"])
    shown = ask(demo, "GET", f"{GUESTS}/g1").json()
    assert (shown["confirmed_revision"], shown["trouble"]) == (view["wanted_revision"] - 1, "fetching image debian")
    stopped = power(demo, "off").json()
    confirm_without_demo(demo, stopped["wanted_revision"])
    shown = ask(demo, "GET", f"{GUESTS}/g1").json()
    assert (shown["confirmed_revision"], shown["trouble"]) == (stopped["wanted_revision"], None)


def confirm_without_demo(world: World, revision: int) -> None:
    pending = {world.view("demo").id: "fetching image debian"}
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": revision, "incomplete": pending})


STILL_ON = "guest g1 should be off, but could not be stopped: libvirt does not answer"


@pytest.fixture
def unstopped(demo: World) -> World:
    """The power of ``g1`` is off, but its host could not stop it. The cluster ``other`` is new on this host."""
    power(demo, "off")
    demo.put("other", spec("brno-h1", owner="bob"))
    demo.converge_switches()
    confirm_unstopped(demo, ["g1"])
    return demo


def confirm_unstopped(world: World, guests: list[str]) -> None:
    revision = ask(world, "GET", "/v1/elements/brno-h1").json()["wanted_revision"]
    cluster = world.view("demo").id
    excluded = {"incomplete": {cluster: STILL_ON}, "unstopped_guests": {cluster: guests}} if guests else {}
    body = {"revision": revision, **excluded}
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", body).status_code == 204


def list_confirmed(world: World) -> list[tuple[str, bool, str | None]]:
    """Return each guest's name, whether its power is confirmed, and its error."""
    guests = [GuestView.model_validate(guest) for guest in ask(world, "GET", GUESTS).json()]
    return [(guest.name, guest.is_confirmed, guest.trouble) for guest in guests]


def test_a_guest_that_does_not_stop_is_shown_as_stopping(unstopped: World) -> None:
    assert list_confirmed(unstopped) == [("g1", False, STILL_ON), ("g2", True, None)]


def test_a_guest_that_does_not_stop_delays_no_other_cluster(unstopped: World) -> None:
    demo = unstopped.view("demo")
    (trouble,) = [part.trouble for part in demo.placements if part.element == "brno-h1"]
    assert (demo.state, trouble, unstopped.view("other").state) == ("degraded", STILL_ON, "active")


def test_a_guest_that_stops_later_is_shown_as_off(unstopped: World) -> None:
    confirm_unstopped(unstopped, [])
    assert list_confirmed(unstopped) == [("g1", True, None), ("g2", True, None)]
    assert unstopped.view("demo").state == "active"


def test_a_stop_is_confirmed_although_the_cluster_is_incomplete(unstopped: World) -> None:
    """A later confirmation excludes the cluster for another reason."""
    confirm_without_demo(unstopped, ask(unstopped, "GET", "/v1/elements/brno-h1").json()["wanted_revision"])
    assert list_confirmed(unstopped) == [("g1", True, None), ("g2", True, None)]


def test_another_stop_waits_for_a_new_confirmation(unstopped: World) -> None:
    power(unstopped, "on")
    confirm_unstopped(unstopped, [])
    power(unstopped, "off")
    assert list_confirmed(unstopped)[0][:2] == ("g1", False)
    unstopped.confirm_hosts()
    assert list_confirmed(unstopped)[0] == ("g1", True, None)


def test_a_start_forgets_the_failed_stop(unstopped: World) -> None:
    power(unstopped, "on")
    power(unstopped, "off")
    confirm_without_demo(unstopped, ask(unstopped, "GET", "/v1/elements/brno-h1").json()["wanted_revision"])
    assert list_confirmed(unstopped)[0] == ("g1", True, None)


def test_a_wait_for_a_guest_does_not_end_early(demo: World) -> None:
    view = power(demo, "on", 1).json()
    confirm_without_demo(demo, view["wanted_revision"])
    path = f"{GUESTS}/g1?after={view['wanted_revision'] - 1}&wait={WAIT_S}"
    assert duration(lambda: ask(demo, "GET", path)) >= WAIT_S
    demo.confirm_hosts()
    with demo.store.change() as unit:
        record_error(unit, "brno-h1", "no heartbeat", timedelta(hours=1), reachable=False)
    assert duration(lambda: ask(demo, "GET", path)) >= WAIT_S


def duration(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started
