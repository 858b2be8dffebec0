import re
import threading
import time
from collections.abc import Iterator

import pytest
from support.emulators import EMULATED_PLATFORMS, emulate
from support.emulators.clients import AdministratorClient
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.switch_device import EmulatedPort, EmulatedSwitch

COMMAND_LINES = [name for name, kind in EMULATED_PLATFORMS.items() if not issubclass(kind, ConfirmTimerSwitch)]
IOS_PORT, OTHER = "GigabitEthernet1/0/1", "GigabitEthernet1/0/8"


@pytest.fixture
def ios() -> Iterator[EmulatedSwitch]:
    with emulate("cisco_ios") as switch:
        yield switch


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_foreign_vlans_and_ports_survive_a_reboot(platform: str) -> None:
    with emulate(platform) as switch:
        access, trunk, shut = switch.port_names[3:6]
        switch.occupy(vlans={20: "printers", 30: "cameras"}, access={access: 20}, trunks={trunk: {20, 30}}, shut=[shut])
        switch.reboot()
        assert {20, 30} <= set(switch.running.vlans)
        assert switch.untagged()[access] == 20
        assert switch.carrying()[trunk] == {20, 30}
        assert switch.running.ports[shut].down


@pytest.mark.parametrize("platform", COMMAND_LINES)
def test_a_trunk_that_allows_all_vlans_carries_every_vlan(platform: str) -> None:
    with emulate(platform) as switch:
        trunk = switch.port_names[4]
        switch.occupy(vlans={20: "printers", 30: "cameras"}, trunks={trunk: "all"})
        assert {20, 30} <= switch.carrying()[trunk]


@pytest.mark.parametrize(
    ("platform", "mode", "down"),
    [
        ("cisco_ios", "dynamic", False),
        ("cisco_nxos", "routed", True),
        ("arista_eos", "access", False),
        ("dell_force10", "routed", True),
        ("dell_os10", "access", False),
        ("hp_comware", "access", False),
        ("aruba_aoscx", "access", False),
        ("sonic", "routed", False),
    ],
)
def test_ports_of_an_erased_switch_are_as_documented(platform: str, mode: str, down: bool) -> None:
    with emulate(platform, factory=True) as switch:
        ports = switch.running.ports.values()
        assert {(port.mode, port.down, port.native) for port in ports} == {(mode, down, 1)}


def test_a_deleted_foreign_vlan_is_recorded(ios: EmulatedSwitch) -> None:
    ios.occupy(vlans={150: "lab"})
    recorder = ios.record_changes(vlans={112})
    ios.configure("no vlan 150")
    assert recorder.changes == [("no vlan 150", "VLAN 150 'lab' deleted")]


def test_a_recreated_foreign_vlan_is_recorded(ios: EmulatedSwitch) -> None:
    ios.occupy(vlans={150: "lab"})
    recorder = ios.record_changes()
    ios.configure("no vlan 150", "vlan 150", "name lab", "exit")
    assert recorder.changes == [
        ("no vlan 150", "VLAN 150 'lab' deleted"),
        ("vlan 150", "VLAN 150 entered"),
        ("name lab", "VLAN 150 created as 'lab'"),
    ]


def test_an_entered_foreign_vlan_is_recorded(ios: EmulatedSwitch) -> None:
    ios.occupy(vlans={150: "lab"})
    recorder = ios.record_changes(vlans={112})
    ios.configure("vlan 112,150", "exit")
    assert recorder.changes == [("vlan 112,150", "VLAN 150 entered")]


def test_a_changed_foreign_port_is_recorded(ios: EmulatedSwitch) -> None:
    recorder = ios.record_changes(ports=[IOS_PORT], vlans={112})
    ios.configure(f"interface {OTHER}", "switchport mode trunk")
    assert recorder.changes == [
        (f"interface {OTHER}", f"port {OTHER} entered"),
        ("switchport mode trunk", f"port {OTHER}: mode 'dynamic' became 'trunk'"),
    ]


def test_changes_of_managed_vlans_and_ports_are_not_recorded(ios: EmulatedSwitch) -> None:
    ios.occupy(vlans={150: "lab"}, access={OTHER: 150})
    recorder = ios.record_changes(ports=[IOS_PORT], vlans={112})
    ios.configure("vlan 112", "name sbf", "exit", f"interface {IOS_PORT}", "switchport mode trunk")
    assert recorder.changes == []


def test_a_new_ios_trunk_still_has_its_access_vlan(ios: EmulatedSwitch) -> None:
    ios.occupy(vlans={20: "printers"}, access={IOS_PORT: 20})
    ios.configure(f"interface {IOS_PORT}", "switchport mode trunk", "switchport trunk native vlan 30")
    assert " switchport access vlan 20\n switchport trunk native vlan 30" in ios.running_config()
    assert ios.running.ports[IOS_PORT] == EmulatedPort("trunk", None, native=20, trunk_native=30)


def test_nxos_refuses_a_second_vlan_with_the_same_name() -> None:
    with emulate("cisco_nxos") as switch, AdministratorClient(switch) as client:
        switch.occupy(vlans={20: "sbf-112"})
        client.send("configure terminal")
        client.send("vlan 112")
        assert "ERROR: VLAN with the same name exists" in client.send("name sbf-112")
        assert switch.running.vlans[112] == "VLAN0112"


@pytest.mark.parametrize(
    ("platform", "command", "words"),
    [
        ("cisco_ios", "show running-config | include vlan", "Command authorization failed."),
        ("cisco_nxos", "show running-config | include vlan", "% Permission denied for the role"),
        ("arista_eos", "show vlan | include x", "% Authorization denied for command 'show vlan | include x'"),
        ("hp_comware", "display vlan | include x", "Permission denied."),
    ],
)
def test_a_forbidden_filter_is_refused_with_the_platforms_message(platform: str, command: str, words: str) -> None:
    with emulate(platform) as switch, AdministratorClient(switch) as client:
        switch.forbid(r"\|")
        assert words in client.send(command)
        assert words not in client.send(command.partition(" |")[0])


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("include vlan 20", "vlan 20"),
        ("section vlan 20", "vlan 20\n name printers"),
        ("begin name pr", " name printers"),
    ],
)
def test_ios_filters_its_output(ios: EmulatedSwitch, kind: str, shown: str) -> None:
    ios.occupy(vlans={20: "printers"})
    with AdministratorClient(ios) as client:
        output = client.send(f"show running-config | {kind}")
    assert output.lstrip("\n").startswith(shown)
    assert "Building configuration" not in output


def test_a_switch_can_ignore_every_matching_line(ios: EmulatedSwitch) -> None:
    ios.ignore_all("allowed vlan")
    with AdministratorClient(ios) as client:
        client.send("configure terminal")
        client.send("interface Gi1/0/1")
        for _ in range(2):
            assert "%" not in client.send("switchport trunk allowed vlan none")
    assert ios.running.ports[IOS_PORT].allowed is None


def test_an_ignored_save_writes_nothing(ios: EmulatedSwitch) -> None:
    ios.ignore_all("^write")
    ios.configure("vlan 112")
    with AdministratorClient(ios) as client:
        assert "[OK]" in client.send("write memory")
    assert (ios.saves, 112 in ios.startup.vlans) == (0, False)


def test_a_log_line_reaches_an_idle_session_without_a_prompt(ios: EmulatedSwitch) -> None:
    line = "*Mar  1 00:10:00.000: %SYS-5-CONFIG_I: Configured from console by admin on vty0 (192.0.2.1)"
    with AdministratorClient(ios) as client:
        ios.log(line)
        assert client.read(until=re.escape(line)) + client.read_for() == f"\n{line}\n"


def test_a_log_line_is_printed_before_an_answer(ios: EmulatedSwitch) -> None:
    ios.fail("log", "^show vlan brief", text="%LINK-3-UPDOWN: Interface Gi1/0/3, changed state to up")
    with AdministratorClient(ios) as client:
        output = client.send("show vlan brief")
    assert output.index("%LINK-3-UPDOWN") < output.index("VLAN Name")


def test_a_renamed_switch_has_another_prompt(ios: EmulatedSwitch) -> None:
    ios.fail("rename", "^show vlan brief", text="core7")
    with AdministratorClient(ios) as client:
        assert client.send("show vlan brief", until="core7# ?$").endswith("core7#")


def test_an_answer_can_be_endless(ios: EmulatedSwitch) -> None:
    ios.fail("drip", "^show vlan brief", seconds=0.01)
    with AdministratorClient(ios) as client:
        output = client.read_for("show vlan brief", 0.4)
    assert output.startswith("show vlan brief\n...")
    assert "#" not in output


def test_output_can_be_sent_slowly_in_pieces() -> None:
    with emulate("cisco_ios", drip=(100, 0.02)) as switch, AdministratorClient(switch) as client:
        before = time.monotonic()
        output = client.send("show running-config")
        assert time.monotonic() - before >= len(output) // 100 * 0.02


def test_a_switch_reboots_while_it_sends_slow_output() -> None:
    with emulate("cisco_ios", drip=(1, 0.05)) as switch:
        client = threading.Thread(target=_read_until_the_end, args=(switch,))
        client.start()
        deadline = time.monotonic() + 10
        while "show running-config" not in switch.commands and time.monotonic() < deadline:
            time.sleep(0.01)
        before = time.monotonic()
        switch.reboot()
        assert time.monotonic() - before < 5, "expected the reboot to cut the output, which takes much longer"
        client.join(5)
        assert not client.is_alive()


def _read_until_the_end(switch: EmulatedSwitch) -> None:
    with AdministratorClient(switch, patience=20) as client, pytest.raises(EOFError):
        client.send("show running-config")
