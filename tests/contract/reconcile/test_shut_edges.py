"""Tests of shut ports of provider edges. A circuit on a shut port carries no frames and is not confirmed."""

from collections.abc import Callable

import pytest
from support.emulators.edge_bench import PAIRS, READY, EdgeBench, open_direct_bench
from support.sbf_fakes.readings import read_edge

from virtcloud.model.edge import EdgeObserved, EdgeWanted
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name

PE = Name("pe1")


def open_converged_bench(platform: str) -> EdgeBench:
    bench = open_direct_bench(platform, next(kind for name, kind in PAIRS if name == platform))
    assert not bench.converge(112)
    return bench


@pytest.mark.parametrize("platform", dict(PAIRS))
def test_a_shut_port_of_an_edge_carries_no_circuit(platform: str) -> None:
    bench = open_converged_bench(platform)
    wanted = EdgeWanted(circuits=(bench.circuit(112),))
    assert bench.read() == EdgeObserved(circuits=wanted.circuits)
    bench.device.running.ports[bench.ports[0]].down = True
    shut = bench.read()
    assert shut.down == wanted.circuits
    assert read_edge(PE, wanted, shut, behind=True).has_drifted
    with pytest.raises(
        Refused, match=rf"edge pe1: VLAN 112 on port {bench.ports[0]} .* found the circuit or its port shut"
    ):
        read_edge(PE, wanted, shut).check_read_back()


@pytest.mark.parametrize("platform", dict(PAIRS))
def test_another_shut_port_does_not_affect_a_circuit(platform: str) -> None:
    bench = open_converged_bench(platform)
    bench.device.running.ports[bench.ports[1]].down = True
    assert bench.read().down == ()


def shut_service_instance(bench: EdgeBench) -> None:
    bench.device.units("GigabitEthernet0/0/1")[112].append("shutdown")


def shut_subinterface(bench: EdgeBench) -> None:
    bench.device.units("GigabitEthernet0/0/0/1")[112].append("shutdown")


def shut_unit(bench: EdgeBench) -> None:
    bench.device.services[""].append("interfaces ge-0/0/1 unit 112 disable")


@pytest.mark.parametrize(
    ("platform", "shut"),
    [("cisco_iosxe", shut_service_instance), ("cisco_iosxr", shut_subinterface), ("juniper_junos", shut_unit)],
)
def test_a_circuit_that_is_shut_down_is_down(platform: str, shut: Callable[[EdgeBench], None]) -> None:
    bench = open_converged_bench(platform)
    shut(bench)
    assert bench.read().down == (bench.circuit(112),)


def test_an_unwanted_circuit_may_be_shut() -> None:
    bench = open_converged_bench("cisco_iosxe")
    bench.device.running.ports[bench.ports[0]].down = True
    reading = read_edge(PE, EdgeWanted(), EdgeObserved(down=bench.read().down))
    assert not reading.has_drifted
    reading.check_read_back()


@pytest.mark.parametrize("platform", READY)
def test_a_member_of_an_aggregate_accepts_no_circuit(platform: str) -> None:
    """The VLAN list of a member port has no effect. The VLANs are configured on the aggregate."""
    bench = open_direct_bench(platform, "evpn")
    bench.device.running.ports[bench.ports[0]].lines.append("channel-group 1 mode active")
    before = bench.device.running_config()
    with pytest.raises(
        Unsafe, match=r"expected an unused port .*, found a member of a link aggregate: the port was left"
    ):
        bench.converge(112)
    assert bench.device.running_config() == before
