"""Tests that the error about a refused command names the VLANs and quotes the switch's message."""

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators.switch_bench import MakeBench, SwitchBench, vlan_line_pattern

from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused

ALLOW = {
    "cisco_ios": "allowed vlan add 112$",
    "cisco_nxos": "allowed vlan add 112$",
    "arista_eos": "allowed vlan add 112$",
    "aruba_aoscx": "^vlan trunk allowed 112$",
    "dell_force10": "^interface vlan 112$",
    "dell_os10": "^switchport trunk allowed vlan 112$",
    "hp_comware": "^port trunk permit vlan 112$",
    "hp_procurve": "^vlan 112 tagged",
    "sonic": "member add 112",
}
LINE_BY_LINE = [name for name in EMULATED if not SWITCH_PLATFORMS[name].capabilities.atomic]


@pytest.fixture(params=LINE_BY_LINE)
def bench(request: pytest.FixtureRequest, make_bench: MakeBench) -> SwitchBench:
    return make_bench(request.param)


def test_a_refused_line_concerns_only_its_vlan(bench: SwitchBench) -> None:
    bench.converge("100", "120")
    platform = bench.switch.platform
    bench.switch.fail("refuse", ALLOW.get(platform) or vlan_line_pattern(DIALECTS[platform].allow, "112"), times=9)
    with pytest.raises(Refused) as caught:
        bench.converge("100,112", "120,121")
    assert set(caught.value.about) == {112}
    assert "112" in caught.value.about[112]


def test_a_refused_port_concerns_the_vlans_added_there(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.converge("100", "120")
    bench.switch.fail("refuse", r"^interface .*1/0/1$", times=9)
    with pytest.raises(Refused) as caught:
        bench.converge("100,112", "120,121")
    assert set(caught.value.about) == {112}


def test_an_error_about_a_ports_allowed_vlans_quotes_the_device(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.fail("refuse", r"^interface .*1/0/1$", times=9)
    with pytest.raises(
        Refused, match=r"sent 'interface .*1/0/1', the device answered .*Invalid input.*wanted an empty list"
    ):
        bench.converge("112")


@pytest.mark.parametrize("platform", ["cisco_ios", "cisco_nxos", "arista_eos"])
def test_a_vlan_with_a_used_name_gets_another_name(platform: str, make_bench: MakeBench) -> None:
    """These platforms refuse a name that another VLAN already has. Therefore SBF adds a suffix to a name in use.

    The VLAN must have a name: after a loss of the database, SBF recognizes its VLANs only by their names.
    """
    bench = make_bench(platform)
    bench.switch.running.vlans[50] = "vc-112"
    bench.switch.forbid("^name vc-112$")
    assert not bench.converge("112", "112")
    assert bench.switch.running.vlans[112] == "vc-112-2"
