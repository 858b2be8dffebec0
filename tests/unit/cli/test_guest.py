import sys
import time
from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import DOCUMENTS, FakeSbf

from virtcloud.cli.session import print_log
from virtcloud.client.guest_clones import CloneObserver
from virtcloud.client.guests import ClusterGuest
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import (
    Conflict,
    Gone,
    NotFound,
    ServiceUnreachable,
    Unauthenticated,
    VirtcloudError,
)
from virtcloud.model.guest_sessions import CloneProgress
from virtcloud.model.guests import GuestPower, GuestView
from virtcloud.model.image import CatalogueImage


@pytest.fixture
def demo(run: RunCommand, sbf: FakeSbf) -> FakeSbf:
    run("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")
    return sbf


def test_stop_waits_until_the_host_has_confirmed(run: RunCommand, demo: FakeSbf) -> None:
    result = run("guest", "stop", "demo", "g1")
    assert result.exit_code == 0
    assert [line.partition(" s  ")[2] for line in result.stderr.splitlines()] == [
        "demo/g1: stopping: waiting for the agent of brno-h1",
        "demo/g1: stopped",
    ]
    assert result.stdout.startswith("guest g1 of cluster demo on brno-h1 is stopped after ")


def test_no_wait_returns_before_the_host_has_confirmed(run: RunCommand, demo: FakeSbf) -> None:
    result = run("guest", "stop", "demo", "g1", "--no-wait")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "guest g1 of cluster demo: stopping; show it: virtcloud guest list demo\n"


def test_a_reset_requests_the_next_number(run: RunCommand, demo: FakeSbf) -> None:
    demo.guest["resets"] = 3
    assert run("guest", "reset", "demo", "g1").exit_code == 0
    assert demo.put == [("power", {"power": "on", "resets": 4})]


def test_a_timeout_shows_the_hosts_error(run: RunCommand, demo: FakeSbf) -> None:
    demo.stuck = True
    demo.guest |= {"trouble": "libvirt does not answer", "confirmed_revision": 5}
    result = run("guest", "start", "demo", "g1", "--timeout", "0.01s")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "virtcloud: host brno-h1 has not confirmed guest g1 after 0.01 s: libvirt does not answer"
    )


def test_the_list_shows_power_states(run: RunCommand, demo: FakeSbf) -> None:
    demo.guest |= {"power": "off", "resets": 2}
    assert run("guest", "list", "demo").stdout.splitlines()[1].split() == [
        *["g1", "brno-h1", "stopped", "2", "10.0.0.1/24", "busybox"]
    ]


def test_the_list_marks_guests_of_unreachable_hosts(run: RunCommand, demo: FakeSbf) -> None:
    demo.guest["reachable"] = False
    assert "unknown (wanted: on): host brno-h1 does not answer" in run("guest", "list", "demo").stdout


def test_a_clone_whose_stop_fails_starts_the_guest_again(
    run: RunCommand, demo: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_sbf(_: ClusterGuest, *_arguments: object) -> None:
        raise ServiceUnreachable("SBF does not answer")

    monkeypatch.setitem(DOCUMENTS, "/v1/images", [])
    monkeypatch.setattr(ClusterGuest, "wait_confirmed", lose_sbf)
    assert run("guest", "clone", "demo", "g1", "mine", "--stop").exit_code == 2
    assert [body["power"] for _, body in demo.put] == ["off", "on"]


def test_a_clone_waits_for_a_guest_that_is_stopping(
    run: RunCommand, demo: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[bool] = []

    def clone(guest: ClusterGuest, *_arguments: object) -> CatalogueImage:
        confirmed.append(guest.view.is_confirmed)
        raise Conflict("disk full")

    monkeypatch.setattr(ClusterGuest, "_clone", clone)
    run("guest", "stop", "demo", "g1", "--no-wait")
    waiting = "guest g1 of cluster demo: stopping; waiting for host brno-h1\n"
    assert run("guest", "clone", "demo", "g1", "mine", "--stop").stderr == f"{waiting}virtcloud: disk full\n"
    assert (confirmed, [body["power"] for _, body in demo.put]) == ([True], ["off"])


def test_a_clone_stops_a_guest_that_was_started_meanwhile(
    run: RunCommand, demo: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    powers: list[GuestPower] = []
    starts = iter(["on"])
    poll = ClusterGuest._poll

    def start(guest: ClusterGuest, answered: float) -> float:
        demo.guest["power"] = next(starts, demo.guest["power"])
        return poll(guest, answered)

    def clone(guest: ClusterGuest, *_arguments: object) -> CatalogueImage:
        powers.append(guest.view.power)
        raise Conflict("disk full")

    monkeypatch.setitem(DOCUMENTS, "/v1/images", [])
    run("guest", "stop", "demo", "g1", "--no-wait")
    monkeypatch.setattr(ClusterGuest, "_clone", clone)
    monkeypatch.setattr(ClusterGuest, "_poll", start)
    run("guest", "clone", "demo", "g1", "mine", "--stop")
    assert (powers, [body["power"] for _, body in demo.put]) == ([GuestPower.OFF], ["off", "off", "on"])


@pytest.fixture
def sbf_ends(demo: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> list[VirtcloudError]:
    """SBF ends during a clone. Calls to start the guest raise the errors of the returned list first."""
    errors: list[VirtcloudError] = []
    set_power = SbfClient.set_guest_power

    def clone(_: ClusterGuest, *_arguments: object) -> CatalogueImage:
        raise ServiceUnreachable("the session was interrupted: SBF stops")

    def try_to_set_power(client: SbfClient, key: str, name: str, power: GuestPower, *more: Any) -> GuestView:
        if power is GuestPower.ON and errors:
            raise errors.pop()
        return set_power(client, key, name, power, *more)

    monkeypatch.setitem(DOCUMENTS, "/v1/images", [])
    monkeypatch.setattr(ClusterGuest, "_clone", clone)
    monkeypatch.setattr(SbfClient, "set_guest_power", try_to_set_power)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    return errors


def test_a_clone_starts_the_guest_when_sbf_answers_again(
    run: RunCommand, demo: FakeSbf, sbf_ends: list[VirtcloudError]
) -> None:
    sbf_ends += [ServiceUnreachable("SBF does not answer")] * 3
    result = run("guest", "clone", "demo", "g1", "mine", "--stop")
    assert result.stderr.splitlines()[-1] == "virtcloud: the session was interrupted: SBF stops"
    assert [body["power"] for _, body in demo.put] == ["off", "on"]


def test_a_clone_reports_that_the_guest_may_still_be_stopped(
    run: RunCommand, sbf_ends: list[VirtcloudError], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbf_ends += [ServiceUnreachable("SBF does not answer")] * 100
    monkeypatch.setattr("virtcloud.client.waiting.PATIENCE_S", -1.0)
    assert run("guest", "clone", "demo", "g1", "mine", "--stop").stderr.splitlines()[-1] == (
        "virtcloud: image mine is not complete: the session was interrupted: SBF stops; guest g1 may still be stopped: "
        "virtcloud guest start demo g1 (SBF does not answer)"
    )


def test_a_failed_start_after_a_clone_reports_the_ready_image(
    run: RunCommand, sbf_ends: list[VirtcloudError], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbf_ends += [ServiceUnreachable("SBF does not answer")] * 100
    monkeypatch.setattr("virtcloud.client.waiting.PATIENCE_S", -1.0)
    monkeypatch.setattr(ClusterGuest, "_clone", lambda *_arguments: None)
    assert run("guest", "clone", "demo", "g1", "mine", "--stop").stderr.splitlines()[-1] == (
        "virtcloud: image mine is ready; guest g1 may still be stopped: virtcloud guest start demo g1 (SBF does not "
        "answer)"
    )


def test_a_clone_reports_the_command_if_the_start_is_refused(run: RunCommand, sbf_ends: list[VirtcloudError]) -> None:
    sbf_ends.append(Unauthenticated("the token has expired"))
    assert run("guest", "clone", "demo", "g1", "mine", "--stop").stderr.splitlines()[-1] == (
        "virtcloud: image mine is not complete: the session was interrupted: SBF stops; guest g1 may still be stopped: "
        "virtcloud guest start demo g1 (the token has expired)"
    )


def test_a_refused_start_after_a_clone_raises_sbfs_exception(
    demo: FakeSbf, sbf_ends: list[VirtcloudError], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbf_ends.append(Unauthenticated("the token has expired"))
    monkeypatch.setattr(ClusterGuest, "_clone", lambda *_arguments: None)
    view = GuestView.model_validate(demo.guest)
    with SbfClient(demo.url) as sbf, pytest.raises(Unauthenticated, match="image mine is ready; guest g1 may still"):
        ClusterGuest(sbf, "1", view).clone("mine", stop=True)


@pytest.mark.parametrize("error", [NotFound("no cluster demo"), Conflict("cluster demo is releasing"), Gone("ended")])
def test_if_clone_and_start_fail_the_clones_error_is_printed(
    run: RunCommand, sbf_ends: list[VirtcloudError], error: VirtcloudError
) -> None:
    sbf_ends.append(error)
    result = run("guest", "clone", "demo", "g1", "mine", "--stop")
    assert result.stderr.splitlines()[-1] == "virtcloud: the session was interrupted: SBF stops"


def test_a_clone_prints_its_progress_and_how_to_use_it(
    run: RunCommand, demo: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"sha256": "0" * 64, "size": 3 << 20, "format": "tar.gz", "architecture": "x86_64"}
    keys = {"name": "mine", "owner": "eva", "kind": "lxc", "added_at": "2026-11-23T08:00:00Z"}
    made = CatalogueImage.model_validate({**keys, "source": source})

    def clone(_: ClusterGuest, image: str, *, stop: bool, progress: CloneObserver) -> CatalogueImage:
        assert (image, stop) == ("mine", True)
        for report in ({}, {"packed": 70 << 20}, {"packed": 100, "size": 100, "sent": 55}, {"image": made}):
            progress(CloneProgress.model_validate(report))
        return made

    monkeypatch.setattr(ClusterGuest, "clone", clone)
    result = run("guest", "clone", "demo", "g1", "mine", "--stop")
    assert [line.partition("clone: ")[2] for line in result.stderr.splitlines()] == [
        *["packing", "packing, 64.0 MiB", "sending 100 bytes, 50 %"]
    ]
    assert result.stdout == "image mine is ready (3.0 MiB); use it: virtcloud cluster create … --image mine\n"


def test_a_clone_of_a_disk_warns_of_what_it_contains(
    run: RunCommand, demo: FakeSbf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"sha256": "0" * 64, "size": 3 << 20, "format": "qcow2", "architecture": "x86_64"}
    keys = {"name": "mine", "owner": "eva", "kind": "qemu", "added_at": "2026-11-23T08:00:00Z"}
    made = CatalogueImage.model_validate({**keys, "source": source})
    monkeypatch.setattr(ClusterGuest, "clone", lambda *_arguments, **_options: made)
    assert (
        "your public keys and the machine ID: before you share it" in run("guest", "clone", "demo", "g1", "mine").stderr
    )


def test_an_incomplete_character_becomes_a_replacement_character(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_log(iter(["Plzeň".encode()[:-1]]))
    assert capsysbinary.readouterr().out.decode() == "Plze\ufffd"
