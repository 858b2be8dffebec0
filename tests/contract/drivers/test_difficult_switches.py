"""Tests of drivers on switches that print log lines, answer slowly, or refuse commands."""

import re

import paramiko
import pytest
from support.emulators import EMULATED_PLATFORMS
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.switch_bench import MakeBench, set_read_timeout

from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.vlans import VlanSet

COMMAND_LINES = [name for name, kind in EMULATED_PLATFORMS.items() if not issubclass(kind, ConfirmTimerSwitch)]
LOGS = {
    "with a timestamp": "*Mar  1 00:10:00.000: %SYS-5-CONFIG_I: Configured from console by admin on vty0 (192.0.2.1)",
    "without a timestamp": "%LINK-3-UPDOWN: Interface GigabitEthernet1/0/3, changed state to up",
    "of NX-OS": "2026 Nov 20 10:00:00 sw1 %ETHPORT-5-IF_UP: Interface Ethernet1/3 is up in mode trunk",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_line_before_a_reading_is_not_a_refusal(log: str, make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    for command in DIALECTS["cisco_ios"].show:
        bench.switch.fail("log", "^" + command.partition(" |")[0], text=log)
    assert not bench.read().vlans


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_line_during_a_change_is_not_a_refusal(log: str, make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.fail("log", "^switchport mode trunk", text=log)
    assert not bench.converge("112")


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_line_during_a_save_is_not_a_failure(log: str, make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.read()
    bench.switch.fail("log", "^write", text=log)
    assert bench.driver.save()


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_output_in_pieces_of_seven_characters_is_read(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, drip=(7, 0.0005))
    assert not bench.converge("112,150")
    assert bench.carries(bench.names[0]) == {112, 150}


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_a_switch_with_factory_ports_is_reconciled(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform, factory=True)
    bench.converge("112", "112")
    allowed = [bench.switch.running.ports[name].allowed for name in bench.names]
    assert all(vlans is not None and vlans & {112, 113} == {112} for vlans in allowed)


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_a_log_line_between_two_commands_is_skipped(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.read()
    bench.switch.log(LOGS["of NX-OS"])
    assert not bench.converge("112")
    bench.switch.log(LOGS["with a timestamp"])
    assert bench.driver.save()
    bench.switch.log(LOGS["with a timestamp"])
    assert bench.read().vlans == VlanSet([112])


def test_a_log_line_after_a_save_is_no_failure(make_bench: MakeBench) -> None:
    """IOS-XE prints a log line after ``[OK]`` in sessions that receive the log."""
    bench = make_bench("cisco_ios")
    bench.switch.variant = (
        "Building configuration...\n[OK]\n"
        "*Nov 20 10:00:00.000: %SYS-6-PRIVCFG_ENCRYPT_SUCCESS: Successfully encrypted private config file\n"
    )
    assert bench.driver.save()


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_a_missing_right_is_reported_with_the_platforms_message(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.read()
    bench.switch.forbid("112")
    error = bench.switch.unauthorized.partition(" '")[0].strip()
    with pytest.raises(Refused, match=re.escape(error)):
        bench.converge("112")


def test_a_login_without_a_prompt_is_described(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.fail("hang", "^terminal ")
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert str(caught.value) == (
        f"switch sw1 ({bench.switch.address}) does not answer: expected a prompt within 1 s after the login, last "
        "output: 'sw1>terminal width 511' (if the device is always this slow, increase timing.read_timeout); "
        "SBF tries again"
    )


def test_an_unanswered_command_is_named_with_the_last_output(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.read()
    bench.switch.fail("hang", "^show vlan brief")
    set_read_timeout(bench.driver, 1)
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert str(caught.value) == (
        f"switch sw1 ({bench.switch.address}) does not answer: no output for 1 s after 'show vlan brief', "
        "last output: 'show vlan brief' (if the device is always this slow, increase timing.read_timeout); "
        "SBF tries again"
    )


def test_a_wait_continues_if_its_deadline_was_extended(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal of SBF's lease for the device can extend the deadline of an answer.

    A ``recv`` that began before the extension raises TimeoutError at the former deadline. In the test, two calls of
    ``recv`` raise this error early.
    """
    bench = make_bench("cisco_ios")
    bench.read()
    receive, cut_short = paramiko.Channel.recv, [TimeoutError(), TimeoutError()]

    def receive_late(channel: paramiko.Channel, size: int) -> bytes:
        if cut_short and channel.gettimeout() is not None:  # the channel of the driver, not of the emulated switch
            raise cut_short.pop()
        return receive(channel, size)

    monkeypatch.setattr(paramiko.Channel, "recv", receive_late)
    assert (bench.read().vlans, cut_short) == (VlanSet(), [])


def test_the_last_output_in_a_message_has_no_password(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", read_timeout=1)
    bench.switch.secret = "another"  # noqa: S105
    bench.switch.fail("hang", "^enable")
    with pytest.raises(Unreachable) as caught:
        bench.read()
    assert bench.switch.password not in str(caught.value)
