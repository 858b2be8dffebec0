"""Tests of single switch platforms: each test checks a property that the other platforms lack."""

import pytest
from support.emulators.switch_bench import MakeBench, driver_for

from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


def test_the_encapsulation_of_a_catalyst_is_set_first(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", encapsulation_first=True)
    assert not bench.converge("112")
    assert bench.carries(bench.names[0]) == {112}


def test_a_vtp_servers_refusal_of_vlans_above_1005_is_quoted(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", vtp="server")
    with pytest.raises(Refused, match="not allowed in current VTP mode"):
        bench.driver.apply(SwitchDifference(create=VlanSet([2000])))


def test_a_vtp_clients_refusal_of_vlans_is_quoted(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios", vtp="client")
    change = SwitchDifference(create=VlanSet([112, 113]), add={bench.a: VlanSet([112]), bench.b: VlanSet([113])})
    bench.read()
    before = bench.switch.logins
    with pytest.raises(Refused, match="sent 'vlan 112', the device answered 'VTP VLAN configuration not allowed"):
        bench.driver.apply(change)
    assert bench.read().ports == {bench.a: VlanSet([112]), bench.b: VlanSet([113])}
    assert bench.switch.logins == before


@pytest.mark.parametrize("platform", DIALECTS)
def test_a_refused_deletion_does_not_stop_other_commands(platform: str, make_bench: MakeBench) -> None:
    """The command ``no vlan`` enters no mode, so the session stays in the configuration mode after the refusal.

    The next ``exit`` leaves only the mode of VLAN 112.
    """
    bench = make_bench(platform)
    bench.driver.apply(SwitchDifference(create=VlanSet([130])))
    before = bench.switch.logins
    bench.switch.fail("refuse", "130", times=10)
    vlan = VlanSet([112])
    with pytest.raises(Refused) as caught:
        bench.driver.apply(SwitchDifference(delete=VlanSet([130]), create=vlan, add={bench.a: vlan, bench.b: vlan}))
    assert set(caught.value.about) == {130}
    assert bench.read().ports == {bench.a: vlan, bench.b: vlan}
    assert bench.switch.logins == before


def test_an_older_sonic_without_switchport_is_configured(make_bench: MakeBench) -> None:
    bench = make_bench("sonic", knows_switchport=False)
    assert not bench.converge("112", "112")


def test_a_procurve_at_its_vlan_limit_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("hp_procurve", max_vlans=1)
    with pytest.raises(Refused, match="Maximum number of VLANs"):
        bench.converge("112")


def test_a_procurve_vlan_with_foreign_ports_is_not_deleted(make_bench: MakeBench) -> None:
    """The switch asks whether to move the ports to another VLAN; the driver answers no."""
    bench = make_bench("hp_procurve")
    bench.converge("112")
    bench.switch.running.ports[bench.other].allowed = {112}
    with pytest.raises(Refused, match="will be moved to the default VLAN"):
        bench.converge()
    assert bench.carries(bench.other) == {112}


def test_a_switch_without_internal_vlans_is_read(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.fail("refuse", "internal usage", times=10)
    assert not bench.converge("112")


def test_an_os9_switch_that_repeats_slots_is_configured(make_bench: MakeBench) -> None:
    """Such a switch prints ``T Te 0/0-0/1``."""
    bench = make_bench("dell_force10", repeated_slots=True)
    assert not bench.converge("112", "112")
    assert bench.read().ports == {bench.a: VlanSet([112]), bench.b: VlanSet([112])}
    assert not bench.converge("112")
    assert (bench.carries(bench.names[0]), bench.carries(bench.names[1])) == ({112}, set())


def test_an_os9_switch_with_an_aggregate_is_configured(make_bench: MakeBench) -> None:
    bench = make_bench("dell_force10")
    bench.switch.occupy(vlans={150: "lab"}, trunks={"Port-channel 1": {150}})
    assert bench.read().elsewhere == {"Port-channel1": VlanSet([150])}
    assert not bench.converge("112")


@pytest.mark.parametrize("multi_chassis", [False, True])
def test_a_lag_of_aoscx_is_configured(make_bench: MakeBench, *, multi_chassis: bool) -> None:
    bench = make_bench("aruba_aoscx", multi_chassis=multi_chassis)
    bench.driver = driver_for(bench.switch, lag := PortName("lag1"))
    bench.a = bench.b = lag
    assert not bench.converge("112", "112")
    assert bench.carries("lag1") == {112}
    bench.driver.close()


def test_an_unmanaged_multi_chassis_lag_of_aoscx_is_read(make_bench: MakeBench) -> None:
    bench = make_bench("aruba_aoscx", multi_chassis=True)
    bench.switch.occupy(vlans={150: "lab"}, trunks={"lag1": {150}})
    assert bench.read().elsewhere == {"lag1": VlanSet([150])}
