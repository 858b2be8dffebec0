import re
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from support.emulators import EMULATED_PLATFORMS, emulate
from support.emulators.clients import AdministratorClient
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.drivers.switch.dialects import DIALECTS

SAVE = {
    "cisco_ios": "write memory",
    "cisco_nxos": "copy running-config startup-config",
    "dell_force10": "write memory",
    "dell_os10": "write memory",
    "hp_procurve": "write memory",
    "aruba_aoscx": "write memory",
    "hp_comware": "save force",
    "arista_eos": "write memory",
    "sonic": "sudo config save -y",
}
SAVE |= {name: dialect.save[-1] for name, dialect in DIALECTS.items() if name not in SAVE}
VLAN = {"dell_force10": "interface vlan 112", "dell_os10": "interface vlan 112", "sonic": "vlan add 112"}
FAILURES = [(name, cause) for name in SAVE for cause in EMULATED_PLATFORMS[name].save_failures]


@pytest.fixture(params=list(SAVE))
def switch(request: pytest.FixtureRequest) -> Iterator[EmulatedSwitch]:
    with emulate(request.param) as switch:
        yield switch


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def change(switch: EmulatedSwitch) -> EmulatedSwitch:
    switch.configure(VLAN.get(switch.platform, "vlan 112"))
    assert 112 in switch.running.vlans
    return switch


def test_a_saved_change_survives_a_reboot(switch: EmulatedSwitch) -> None:
    client = AdministratorClient(change(switch))
    client.send(SAVE[switch.platform])
    client.close()
    switch.reboot()
    assert 112 in switch.running.vlans


def test_an_unsaved_change_is_lost_in_a_reboot(switch: EmulatedSwitch) -> None:
    change(switch)
    switch.reboot()
    assert 112 not in switch.running.vlans


@pytest.mark.parametrize(("platform", "cause"), FAILURES)
def test_a_failed_save_prints_the_platforms_message(platform: str, cause: str) -> None:
    with emulate(platform) as switch:
        change(switch).fail_save(cause)
        client = AdministratorClient(switch)
        last = switch.save_failures[cause].strip().splitlines()[-1]
        is_question = last.endswith((":", "]", "?"))
        output = client.send(SAVE[platform], *[r"[:?] ?$"] * is_question)
        client.close()
        assert last in output
        assert (112 in switch.startup.vlans, switch.saves) == (False, 0)


def test_a_save_after_a_failed_one_succeeds(switch: EmulatedSwitch) -> None:
    change(switch).fail_save("ignore")
    client = AdministratorClient(switch)
    client.send(SAVE[switch.platform])
    assert (112 in switch.startup.vlans, switch.saves) == (False, 0)
    client.send(SAVE[switch.platform])
    client.close()
    assert (112 in switch.startup.vlans, switch.saves) == (True, 1)


def test_an_ineffective_save_prints_the_success_message(switch: EmulatedSwitch) -> None:
    client = AdministratorClient(switch)
    success = client.send(SAVE[switch.platform])
    switch.fail_save("ignore")
    assert client.send(SAVE[switch.platform]) == success
    client.close()


@pytest.mark.parametrize(("cause", "written"), [("disconnect", False), ("disconnect written", True)])
def test_a_cut_save_ends_the_session(switch: EmulatedSwitch, cause: str, written: bool) -> None:
    change(switch).fail_save(cause)
    client = AdministratorClient(switch)
    with pytest.raises(EOFError):
        client.send(SAVE[switch.platform])
    assert (112 in switch.startup.vlans) is written


@pytest.mark.parametrize(("cause", "written"), [("hang", False), ("hang written", True)])
def test_a_hanging_save_prints_no_prompt(switch: EmulatedSwitch, cause: str, written: bool) -> None:
    change(switch).fail_save(cause)
    begin, command = switch.saving.replace("\r", "").strip(), SAVE[switch.platform]
    with AdministratorClient(switch) as client:
        output = client.send(command, until=re.escape(begin)) if begin else client.read_for(command)
        wait_until(lambda: 112 in switch.startup.vlans or not written)
        output += client.read_for()
    assert "sw1" not in output.replace(command, "")
    assert (112 in switch.startup.vlans) is written


def test_no_session_can_save_during_a_hanging_save() -> None:
    with emulate("cisco_ios") as switch:
        change(switch).fail_save("hang")
        hanging, other = AdministratorClient(switch), AdministratorClient(switch)
        hanging.read_for("write memory", 0)
        wait_until(switch._storing.locked)
        assert "startup-config file open failed (Device or resource busy)" in other.send("write memory")
        assert switch.saves == 0
        hanging.close()
        other.close()


def test_ios_asks_for_the_name_of_the_startup_file() -> None:
    with emulate("cisco_ios") as switch:
        client = AdministratorClient(change(switch))
        output = client.send("copy running-config startup-config", until=r"\? $")
        assert output.endswith("Destination filename [startup-config]? ")
        assert switch.saves == 0
        assert "[OK]" in client.send("")
        assert switch.saves == 1
        client.close()


def test_a_slow_save_succeeds_eventually(switch: EmulatedSwitch) -> None:
    switch.fail_save("slow", seconds=0.4)
    client = AdministratorClient(switch)
    before = time.monotonic()
    client.send(SAVE[switch.platform])
    client.close()
    assert time.monotonic() - before >= 0.4
    assert switch.saves == 1


def test_a_reboot_can_restore_the_startup_before_the_last_save(switch: EmulatedSwitch) -> None:
    switch.save()
    change(switch).save()
    switch.reboot(boot="older")
    assert 112 not in switch.running.vlans
    assert switch.running == switch.startup


def test_a_reboot_of_an_erased_switch_restores_the_factory_state(switch: EmulatedSwitch) -> None:
    switch.occupy(vlans={20: "printers"}, access={switch.port_names[3]: 20})
    switch.save()
    switch.reboot(boot="empty")
    assert switch.running == switch.factory_state()
    assert 20 not in switch.running.vlans


def test_a_rebooting_switch_refuses_connections(switch: EmulatedSwitch) -> None:
    host, port = switch.address.split(":")
    switch.reboot(down=0.4)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    wait_until(lambda: switch.boots)
    client = AdministratorClient(switch)
    client.close()
    assert switch.boots == 1


def test_a_switch_stays_off_until_it_is_switched_on() -> None:
    with emulate("arista_eos") as switch:
        host, port = switch.address.split(":")
        switch.power_off()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        switch.power_on()
        socket.create_connection((host, int(port))).close()


def test_a_vtp_server_restores_its_unsaved_vlans() -> None:
    """``vlan.dat`` contains VLANs 1 to 1005 of a VTP server, independently of the startup configuration."""
    with emulate("cisco_ios", vtp="server") as switch:
        change(switch)
        switch.reboot()
        assert 112 in switch.running.vlans


def test_a_switch_with_eapi_closes_connections_while_off() -> None:
    with emulate("arista_eapi") as switch:
        host, port = switch.address.split(":")
        switch.power_off()
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(5)
            connection.sendall(b"x")
            with pytest.raises(ConnectionError):
                _until_closed(connection)


def _until_closed(connection: socket.socket) -> None:
    while data := connection.recv(100):
        raise AssertionError(data)
    raise ConnectionAbortedError


def test_an_unknown_save_fault_is_refused_with_all_kinds() -> None:
    with emulate("cisco_ios") as switch, pytest.raises(ValueError, match="expected one of") as refused:
        switch.fail_save("absent")
    assert [kind for kind in switch.save_questions if kind not in str(refused.value)] == []
