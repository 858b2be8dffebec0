from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from support.emulators.arista_eapi import AristaEapi, ConfigSession
from support.emulators.eapi_server import self_signed
from support.emulators.fault_injection import Kind
from support.emulators.switch_bench import MakeBench, SwitchBench, login_for

from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchObserved
from virtcloud.model.vlans import VlanSet


@pytest.fixture
def bench(make_bench: MakeBench) -> SwitchBench:
    return make_bench("arista_eapi")


def arista_switch(bench: SwitchBench) -> AristaEapi:
    assert isinstance(bench.switch, AristaEapi)
    return bench.switch


def test_only_sessions_left_by_sbf_are_deleted(bench: SwitchBench) -> None:
    """EOS stores up to five configuration sessions for a day. NAPALM treats each of them as a lock by another user."""
    switch = arista_switch(bench)
    names = [*(f"virtcloud-{n}" for n in range(4)), "cvp-session"]
    switch.config_sessions = {name: ConfigSession(deepcopy(switch.running)) for name in names}
    assert not bench.converge("112")
    assert [name for name, session in switch.config_sessions.items() if session.phase == "pending"] == ["cvp-session"]


@pytest.mark.parametrize("release", [4.31, 4.32])
def test_a_change_is_confirmed_with_both_forms_of_session_lists(release: float, make_bench: MakeBench) -> None:
    bench = make_bench("arista_eapi", release=release)
    assert not bench.converge("112")
    assert arista_switch(bench).unconfirmed is None


@pytest.mark.parametrize(("fault", "command"), [("ignore", "allowed vlan add"), ("refuse", "commit timer")])
def test_a_revert_restores_the_running_not_the_startup_configuration(
    bench: SwitchBench, fault: Kind, command: str
) -> None:
    arista_switch(bench).configure("vlan 77")
    arista_switch(bench).fail(fault, command, times=9)
    with pytest.raises(Refused, match=r"the commit was reverted|Invalid input"):
        bench.converge("112")
    assert 77 in arista_switch(bench).running.vlans


def read_with_certificates(bench: SwitchBench, certificates: Path) -> SwitchObserved:
    login = replace(login_for(bench.switch, bench.a), ca_file=certificates)
    return SWITCH_PLATFORMS["arista_eapi"].driver(login).read(bench.managed)


def test_a_switch_with_the_known_certificate_is_read(bench: SwitchBench, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(arista_switch(bench).certificate)
    assert read_with_certificates(bench, tmp_path / "pem").vlans == VlanSet()


def test_no_password_is_sent_to_an_unknown_certificate(bench: SwitchBench, tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(self_signed("another")[0])
    with pytest.raises(Unsafe, match=r"shows a certificate that .*pem does not contain: nothing was sent"):
        read_with_certificates(bench, tmp_path / "pem")
    assert bench.switch.commands == []


def test_a_wrong_enable_password_is_refused(bench: SwitchBench) -> None:
    bench.switch.secret = "another"  # noqa: S105
    with pytest.raises(Refused, match=r"enable.* failed: .*Access denied"):
        bench.read()
