"""Tests of switches with a candidate configuration and a confirm timer.

Such a switch reverts a commit that is not confirmed before the timer expires.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.switch_bench import POOL, MakeBench, SwitchBench, driver_for

from sbf_service.drivers.contract import SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.vlans import VlanSet

WITH_TIMER = [name for name, platform in SWITCH_PLATFORMS.items() if platform.capabilities.confirm_timer]
REVERTS_WITH_SESSION = ("cisco_iosxr",)
"""Platforms that revert an unconfirmed commit immediately at the end of the session."""
PENDING_COMMIT = {"cisco_iosxr": "session 146959354 holds the lock"}
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
REVERT = {
    "cisco_iosxr": "^cancel-commit",
    "juniper_junos": "^load-configuration .*rollback",
    "arista_eapi": r"^configure session \S+ abort$",
}
SHOW = {"cisco_iosxr": "^get-config", "juniper_junos": "^get-configuration database", "arista_eapi": "^show vlan$"}
LOCK_MESSAGES = {
    "cisco_iosxr": "by another user: session 146959354 holds the lock",
    "juniper_junos": "by another user: configuration database locked by: netadmin terminal p0",
    "arista_eapi": "a commit is unconfirmed",
}


@pytest.fixture(params=WITH_TIMER)
def bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


def timer_switch(bench: SwitchBench) -> ConfirmTimerSwitch:
    assert isinstance(bench.switch, ConfirmTimerSwitch)
    return bench.switch


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait up to 30 s. Return whether the condition holds."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def has_no_vlans(driver: SwitchDriver, managed: SwitchScope) -> bool:
    try:
        return driver.read(managed).vlans == VlanSet()
    except Unreachable:
        return False


@pytest.mark.parametrize("platform", WITH_TIMER)
def test_a_lost_sessions_unconfirmed_commit_is_reverted(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, **({"detects_session_end": False} if platform in REVERTS_WITH_SESSION else {}))
    switch = timer_switch(bench)
    bench.converge("150")
    before = switch.running_config()
    switch.fail("disconnect", CONFIRM[switch.platform])
    with pytest.raises(Unreachable, match="sw1"):
        bench.converge("112", "112")
    assert bench.carries(bench.names[1]) == {112}
    with pytest.raises(
        Unreachable, match=f"sw1.* is being configured.*{PENDING_COMMIT.get(platform, 'a commit is unconfirmed')}"
    ):
        bench.read()
    switch.expire_timer()
    assert switch.running_config() == before
    assert bench.read().ports[bench.a] == VlanSet([150])
    assert not bench.converge("112", "112")


def test_the_switch_reverts_an_unconfirmed_commit(bench: SwitchBench) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()
    switch.fail("disconnect", CONFIRM[switch.platform])
    with pytest.raises(Unreachable):
        bench.converge("112")
    switch.shorten_timer()
    assert wait_until(lambda: switch.running_config() == before)


def test_a_killed_services_unconfirmed_commit_is_reverted(bench: SwitchBench, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()

    def kill() -> None:
        bench.driver.close()
        raise KeyboardInterrupt

    driver: Any = bench.driver
    monkeypatch.setattr(driver._session, "confirm", kill)
    with pytest.raises(KeyboardInterrupt):
        bench.converge("112")
    switch.expire_timer()
    assert switch.running_config() == before
    driver = driver_for(switch, bench.a, bench.b)
    assert wait_until(lambda: has_no_vlans(driver, bench.managed))
    driver.close()


def test_a_session_cut_before_the_commit_changes_nothing(bench: SwitchBench) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()
    switch.fail("disconnect", COMMIT[switch.platform])
    with pytest.raises(Unreachable):
        bench.converge("112")
    assert switch.running_config() == before
    assert not bench.converge("112")


@pytest.mark.parametrize("platform", [name for name in WITH_TIMER if name != "cisco_iosxr"])
def test_an_ineffective_confirmation_is_detected(platform: str, make_bench: MakeBench) -> None:
    """IOS-XR is excluded: there, a session does not show that its own commit is unconfirmed."""
    bench = make_bench(platform)
    timer_switch(bench).fail("ignore", CONFIRM[bench.switch.platform])
    with pytest.raises(Unreachable, match="a commit is unconfirmed"):
        bench.converge("112")


def test_a_switch_locked_by_an_administrator_is_tried_again(bench: SwitchBench) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()
    switch.locked_by = "netadmin"
    with pytest.raises(Unreachable, match=f"sw1.* is being configured.* {LOCK_MESSAGES[switch.platform]}"):
        bench.converge("112")
    assert switch.running_config() == before
    switch.locked_by = ""
    assert not bench.converge("112")


def test_a_refused_commit_changes_nothing_and_releases_the_lock(bench: SwitchBench) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()
    switch.fail("refuse", COMMIT[switch.platform])
    with pytest.raises(Refused, match="sw1: the switch answered"):
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
    timer_switch(bench).fail("ignore", "(?s)switchport access vlan|load-configuration.* members|edit-config", times=9)
    change = SwitchDifference(access=(bench.b,), create=VlanSet([112]), add={bench.b: VlanSet([112])})
    with pytest.raises(Refused, match=r"access port .*: wanted VLAN 112 untagged, found .*; the commit was reverted"):
        bench.driver.apply(change)
    assert bench.switch.running_config() == before


def test_a_commit_that_will_be_reverted_is_not_read(bench: SwitchBench) -> None:
    """The device refuses the confirmation and SBF's revert. The confirm timer then reverts the commit."""
    switch = timer_switch(bench)
    bench.read()
    switch.fail("refuse", CONFIRM[switch.platform])
    switch.fail("refuse", REVERT[switch.platform])
    with pytest.raises(Refused, match="sw1: the switch answered"):
        bench.driver.apply(SwitchDifference(create=VlanSet([112])))
    with suppress(Unreachable):
        assert bench.read().vlans == VlanSet()


def test_an_unreadable_result_reverts_the_commit(bench: SwitchBench) -> None:
    switch = timer_switch(bench)
    before = switch.running_config()
    bench.read()
    switch.fail("print", SHOW[switch.platform], text="unknown text")
    with pytest.raises(Unsafe, match="unknown text"):
        bench.driver.apply(SwitchDifference(create=VlanSet([112])))
    assert switch.running_config() == before
    assert switch.unconfirmed is None


def test_a_hanging_switch_is_unreachable_after_its_timeout(bench: SwitchBench) -> None:
    bench.read()
    bench.switch.fail("hang", SHOW[bench.switch.platform])
    session = bench.driver._session  # type: ignore[attr-defined]
    session.set_timeout(session._driver, 0.3)
    with pytest.raises(Unreachable, match="sw1"):
        bench.read()
    assert wait_until(lambda: has_no_vlans(bench.driver, bench.managed))


def test_a_wrong_password_is_refused(bench: SwitchBench) -> None:
    bench.switch.password = "another"  # noqa: S105
    with pytest.raises(Refused, match="refuses the login of 'admin': check the credential"):
        bench.read()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "[::1]:9"])
def test_a_closed_port_is_unreachable(bench: SwitchBench, address: str) -> None:
    bench.switch.address = address
    driver = driver_for(bench.switch, bench.a)
    with pytest.raises(Unreachable, match=rf"sw1 \({re.escape(address)}\) does not answer: .*(refused|open socket)"):
        driver.read(SwitchScope((bench.a,), POOL))


def test_broken_xml_is_unsafe(make_bench: MakeBench) -> None:
    bench = make_bench("juniper_junos")
    bench.switch.fail("print", "^get-configuration", text="<configuration><unclosed>")
    with pytest.raises(Unsafe, match=r"sw1.*cannot parse the answer"):
        bench.read()


def test_the_login_of_a_session_is_in_no_message(bench: SwitchBench, tmp_path: Path) -> None:
    switch = bench.switch
    switch.fail("disconnect", SHOW[switch.platform])
    with pytest.raises(Unreachable) as raised:
        bench.read()
    assert switch.password not in f"{raised.value} {raised.value.__cause__!r}"
