"""Tests of switches with a candidate configuration and a confirm timer. An unconfirmed commit leaves no trace."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from emulators.confirm_timer import ConfirmTimerSwitch
from emulators.switch_bench import POOL, MakeBench, SwitchBench, driver_for

from sbf_service.drivers.contract import SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

WITH_TIMER = [name for name, platform in SWITCH_PLATFORMS.items() if platform.capabilities.confirm_timer]
ENDS_WITH_ITS_SESSION = ("cisco_iosxr",)
"""Platforms that revert an unconfirmed commit as soon as they detect the end of the session."""
WAITING = {"cisco_iosxr": "session 146959354 holds the lock"}
COMMIT = {
    "cisco_iosxr": "^commit confirmed",
    "juniper_junos": "^commit-configuration .*confirmed",
    "arista_eapi": "commit timer",
}
CONFIRM = {
    "cisco_iosxr": "^commit$",
    "juniper_junos": "^commit-configuration$",
    "arista_eapi": r"^configure session \S+ commit$",
}
SHOW = {"cisco_iosxr": "^get-config", "juniper_junos": "^get-configuration database", "arista_eapi": "^show vlan$"}
HELD = {
    "cisco_iosxr": "by somebody else: session 146959354 holds the lock",
    "juniper_junos": "by somebody else: configuration database locked by: netadmin terminal p0",
    "arista_eapi": "a commit waits to be confirmed",
}


@pytest.fixture(params=WITH_TIMER)
def bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


def committing(bench: SwitchBench) -> ConfirmTimerSwitch:
    assert isinstance(bench.switch, ConfirmTimerSwitch)
    return bench.switch


def seen_in_time(claim: Callable[[], bool]) -> bool:
    """Wait for an asynchronous event for at most 30 s."""
    until = time.monotonic() + 30
    while not claim() and time.monotonic() < until:
        time.sleep(0.01)
    return claim()


def carries_nothing(driver: SwitchDriver, managed: SwitchScope) -> bool:
    """Return whether a read succeeds and shows no VLAN."""
    try:
        return driver.read(managed).vlans == VlanSet()
    except Unreachable:
        return False


@pytest.mark.parametrize("platform", WITH_TIMER)
def test_a_session_lost_before_confirming_leaves_the_former_configuration(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, **({"notices": False} if platform in ENDS_WITH_ITS_SESSION else {}))
    switch = committing(bench)
    bench.converge("150")
    before = switch.running_config()
    switch.fail("cut", CONFIRM[switch.platform])
    with pytest.raises(Unreachable, match="sw1"):
        bench.converge("112", "112")
    assert bench.carries(bench.names[1]) == {112}
    with pytest.raises(Unreachable, match=f"sw1.* is being configured.*{WAITING.get(platform, 'a commit waits')}"):
        bench.read()
    switch.time_is_up()
    assert switch.running_config() == before
    assert bench.read().ports[bench.a] == VlanSet([150])
    assert not bench.converge("112", "112")


def test_the_switch_reverts_an_unconfirmed_commit(bench: SwitchBench) -> None:
    switch = committing(bench)
    before = switch.running_config()
    switch.fail("cut", CONFIRM[switch.platform])
    with pytest.raises(Unreachable):
        bench.converge("112")
    switch.hasten()
    assert seen_in_time(lambda: switch.running_config() == before)


def test_a_service_killed_before_confirming_leaves_the_former_configuration(
    bench: SwitchBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost. Another process reads the switch after the confirm timer has expired."""
    switch = committing(bench)
    before = switch.running_config()

    def killed() -> None:
        bench.driver.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.driver._session, "confirm", killed)
    with pytest.raises(KeyboardInterrupt):
        bench.converge("112")
    switch.time_is_up()
    assert switch.running_config() == before
    again = driver_for(switch, bench.a, bench.b)
    assert seen_in_time(lambda: carries_nothing(again, bench.managed))
    again.close()


def test_a_session_cut_before_the_commit_changes_nothing(bench: SwitchBench) -> None:
    switch = committing(bench)
    before = switch.running_config()
    switch.fail("cut", COMMIT[switch.platform])
    with pytest.raises(Unreachable):
        bench.converge("112")
    assert switch.running_config() == before
    assert not bench.converge("112")


@pytest.mark.parametrize("platform", [name for name in WITH_TIMER if name != "cisco_iosxr"])
def test_an_ineffective_confirmation_is_detected(platform: str, make_bench: MakeBench) -> None:
    """The worker reads the switch after the change, and an unconfirmed commit does not count as applied.

    IOS-XR does not show in the committing session that a commit awaits its confirmation.
    """
    bench = make_bench(platform)
    committing(bench).fail("ignore", CONFIRM[bench.switch.platform])
    with pytest.raises(Unreachable, match="waits to be confirmed"):
        bench.converge("112")


def test_a_switch_locked_by_an_administrator_is_tried_again(bench: SwitchBench) -> None:
    switch = committing(bench)
    before = switch.running_config()
    switch.locked_by = "netadmin"
    with pytest.raises(Unreachable, match=f"sw1.* is being configured.* {HELD[switch.platform]}"):
        bench.converge("112")
    assert switch.running_config() == before
    switch.locked_by = ""
    assert not bench.converge("112")


def test_a_refused_commit_changes_nothing_and_releases_the_lock(bench: SwitchBench) -> None:
    switch = committing(bench)
    before = switch.running_config()
    switch.fail("refuse", COMMIT[switch.platform])
    with pytest.raises(Refused, match="sw1: the switch said"):
        bench.converge("112")
    assert switch.running_config() == before
    second = driver_for(switch, bench.a, bench.b)
    second.apply(SwitchDifference(create=VlanSet([112])))
    second.close()
    assert 112 in switch.running.vlans


@pytest.mark.parametrize("platform", [name for name in WITH_TIMER if SWITCH_PLATFORMS[name].capabilities.access])
def test_an_access_port_in_the_wrong_vlan_reverts_the_commit(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.read()
    before = bench.switch.running_config()
    committing(bench).fail("ignore", "(?s)switchport access vlan|load-configuration.* members|edit-config", times=9)
    change = SwitchDifference(access=(bench.b,), create=VlanSet([112]), add={bench.b: VlanSet([112])})
    with pytest.raises(Refused, match=r"access port .*: wanted VLAN 112 untagged, found .*, which was taken back"):
        bench.driver.apply(change)
    assert bench.switch.running_config() == before


def test_an_unreadable_result_reverts_the_commit(bench: SwitchBench) -> None:
    switch = committing(bench)
    before = switch.running_config()
    bench.read()
    switch.fail("say", SHOW[switch.platform], text="nobody understands this")
    with pytest.raises(Unsafe, match="nobody understands this"):
        bench.driver.apply(SwitchDifference(create=VlanSet([112])))
    assert switch.running_config() == before
    assert switch.unconfirmed is None


def test_a_hanging_switch_is_unreachable_after_its_timeout(bench: SwitchBench, make_bench: MakeBench) -> None:
    slow = make_bench(bench.switch.platform, read_timeout=0.3)
    slow.switch.fail("hang", SHOW[slow.switch.platform])
    with pytest.raises(Unreachable, match="sw1"):
        slow.read()
    assert seen_in_time(lambda: carries_nothing(slow.driver, slow.managed))


def test_a_wrong_password_is_refused(bench: SwitchBench) -> None:
    bench.switch.password = "another"  # noqa: S105
    with pytest.raises(Refused, match="does not let 'admin' in: check the credential"):
        bench.read()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "[::1]:9"])
def test_a_closed_port_is_unreachable(bench: SwitchBench, address: str) -> None:
    bench.switch.address = address
    lost = driver_for(bench.switch, bench.a)
    with pytest.raises(Unreachable, match=rf"sw1 \({re.escape(address)}\) does not answer: .*(refused|open socket)"):
        lost.read(SwitchScope((bench.a,), POOL))


def test_broken_xml_is_unsafe(make_bench: MakeBench) -> None:
    bench = make_bench("juniper_junos")
    bench.switch.fail("say", "^get-configuration", text="<configuration><unclosed>")
    with pytest.raises(Unsafe, match=r"sw1.*its answer is not understood"):
        bench.read()


def test_the_login_of_a_session_is_in_no_message(bench: SwitchBench, tmp_path: Path) -> None:
    switch = bench.switch
    switch.fail("cut", SHOW[switch.platform])
    with pytest.raises(Unreachable) as raised:
        bench.read()
    assert switch.password not in f"{raised.value} {raised.value.__cause__!r}"
