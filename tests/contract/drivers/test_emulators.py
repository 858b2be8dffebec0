import time

import netmiko
import pytest
from support.emulators import EMULATED_PLATFORMS, emulate
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.drivers.switch.dialects import DIALECTS

COMMAND_LINES = [name for name, kind in EMULATED_PLATFORMS.items() if not issubclass(kind, ConfirmTimerSwitch)]
SHOW = {
    "cisco_ios": "show running-config",
    "cisco_nxos": "show running-config interface",
    "dell_force10": "show vlan",
    "dell_os10": "show running-configuration interface",
    "hp_procurve": "show running-config",
    "aruba_aoscx": "show running-config",
    "hp_comware": "display current-configuration interface",
    "arista_eos": "show vlan",
    "sonic": "show vlan config",
}


def open_session(switch: EmulatedSwitch, **options: object) -> netmiko.BaseConnection:
    host, port = switch.address.split(":")
    return netmiko.ConnectHandler(
        device_type=DIALECTS[switch.platform].netmiko,
        host=host,
        port=int(port),
        username=switch.username,
        password=switch.password,
        secret=switch.secret,
        **options,
    )


def open_privileged_session(switch: EmulatedSwitch) -> netmiko.BaseConnection:
    connection = open_session(switch)
    if switch.platform not in ("sonic", "hp_comware"):
        connection.enable()
    return connection


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_netmiko_logs_in_enables_and_reads(platform: str) -> None:
    with emulate(platform) as switch:
        connection = open_privileged_session(switch)
        assert connection.send_command(SHOW.get(platform, DIALECTS[platform].show[0]), auto_find_prompt=False)
        connection.remote_conn_pre.close()


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_an_invalid_line_is_answered_with_the_platforms_message(platform: str) -> None:
    errors = {"sonic": "command not found", "arista_eos": "% Invalid input", "hp_comware": "% Unrecognized command"}
    with emulate(platform) as switch:
        connection = open_privileged_session(switch)
        output = connection.send_command("bogus")
        connection.remote_conn_pre.close()
    common = ("% Invalid", "Invalid input", "% Error")
    assert errors[platform] in output if platform in errors else any(text in output for text in common)


def test_a_wrong_password_is_rejected() -> None:
    with emulate("cisco_ios") as switch:
        switch.password = "another"  # noqa: S105
        before = switch.logins
        wrong = {"device_type": "cisco_ios", "host": "127.0.0.1", "port": int(switch.address.split(":")[1])}
        with pytest.raises(netmiko.NetmikoAuthenticationException):
            netmiko.ConnectHandler(**wrong, username=switch.username, password="guess")  # noqa: S106
        assert switch.logins == before


def test_long_output_stops_at_more_unless_paging_is_off() -> None:
    with emulate("cisco_ios") as switch:
        connection = open_privileged_session(switch)
        connection.send_command("terminal length 5")
        assert "--More--" in connection.send_command("show running-config", expect_string="--More--")
        connection.remote_conn_pre.close()


def test_add_has_no_effect_without_a_vlan_list() -> None:
    """A trunk without a VLAN list carries every VLAN already."""
    with emulate("cisco_ios") as switch:
        switch.configure(
            "vlan 112", "interface Gi1/0/1", "switchport mode trunk", "switchport trunk allowed vlan add 112"
        )
        assert switch.carrying() == {"GigabitEthernet1/0/1": {1, 112}}
        assert switch.running.ports["GigabitEthernet1/0/1"].allowed is None


def test_a_list_without_add_replaces_the_former_list() -> None:
    with emulate("cisco_ios") as switch:
        switch.configure("interface Gi1/0/1", "switchport trunk allowed vlan 10", "switchport trunk allowed vlan 20")
        assert switch.running.ports["GigabitEthernet1/0/1"].allowed == {20}


def test_on_os10_a_list_without_add_is_added() -> None:
    with emulate("dell_os10") as switch:
        switch.configure("interface ethernet1/1/1", "switchport mode trunk", "switchport trunk allowed vlan 10")
        switch.configure("interface ethernet1/1/1", "switchport trunk allowed vlan 20")
        assert switch.running.ports["ethernet1/1/1"].allowed == {10, 20}


def test_ios_creates_vlans_when_their_mode_is_left() -> None:
    with emulate("cisco_ios") as switch:
        switch.configure("vlan 112,1006")
        assert 112 in switch.running.vlans
        assert 1006 not in switch.running.vlans


def test_long_lists_are_wrapped() -> None:
    with emulate("cisco_ios") as switch:
        vlans = ",".join(str(vlan) for vlan in range(100, 200, 2))
        switch.configure("interface Gi1/0/1", f"switchport trunk allowed vlan {vlans}")
        assert switch.running_config().count("switchport trunk allowed vlan add") == 5


def test_a_reboot_restores_the_saved_configuration() -> None:
    with emulate("cisco_ios") as switch:
        switch.configure("vlan 112")
        switch.save()
        switch.configure("no vlan 112", "vlan 113")
        switch.reboot()
        assert set(switch.running.vlans) == {1, 112}


def test_a_session_over_the_limit_is_rejected() -> None:
    with emulate("arista_eos", sessions=1) as switch:
        first = open_session(switch)
        with pytest.raises(netmiko.NetmikoTimeoutException):
            open_session(switch, banner_timeout=1)
        first.remote_conn_pre.close()


def test_a_slow_switch_answers_after_its_delay() -> None:
    with emulate("dell_os10", slowness=0.3) as switch:
        connection = open_session(switch)
        before = time.monotonic()
        connection.send_command("show running-configuration interface", auto_find_prompt=False)
        assert time.monotonic() - before >= 0.3
        connection.remote_conn_pre.close()


def test_an_ignored_command_is_accepted_without_an_effect() -> None:
    with emulate("arista_eos") as switch:
        switch.fail("ignore", "^no vlan")
        switch.configure("vlan 112")
        connection = open_privileged_session(switch)
        assert "%" not in connection.send_config_set(["no vlan 112"])
        assert 112 in switch.running.vlans
        connection.remote_conn_pre.close()


def test_64_switches_run_simultaneously() -> None:
    contexts = [emulate("cisco_ios", hostname=f"sw{number}") for number in range(64)]
    switches = [context.__enter__() for context in contexts]
    assert len({switch.address for switch in switches}) == 64
    for context in contexts:
        context.__exit__(None, None, None)
