"""Tests of the Linux edge driver on a simulated edge, whose state is checked after every line."""

from dataclasses import dataclass, field
from ipaddress import IPv6Address

import pytest
from support.edge_claims import EDGE, MANAGED, OVERLAY, STAGS, A, B, EdgeClaims, circuit, converge
from support.sbf_fakes.linux_edge import Interface, LinuxPe, PeLine

from sbf_service.drivers.contract import Backbone, EdgeDriver
from sbf_service.drivers.edge.linux_edge import LinuxEdge
from virtcloud.model.edge import EdgeDifference
from virtcloud.model.errors import Refused, Unreachable, Unsafe

BACKBONE = Backbone((OVERLAY, STAGS), {})


@dataclass
class InMemory:
    """A test bench with a simulated Linux edge."""

    machine: LinuxPe = field(default_factory=LinuxPe)

    def __post_init__(self) -> None:
        self.driver: EdgeDriver = LinuxEdge(EDGE, BACKBONE, PeLine(self.machine))

    def do(self, program: str, *lines: str) -> None:
        faults = [fault for line in lines if (fault := self.machine.do(program, line))]
        assert not faults

    def carries(self) -> dict[str, dict[int, str]]:
        return {
            port: {vlan: ", ".join(flags) for vlan, flags in vlans.items()}
            for port, vlans in self.machine.vlans.items()
            if vlans
        }

    def devices(self) -> set[str]:
        return self.machine.links.keys() - {"lo", "br0", "ac1", "ac2", "other", "core"}


@pytest.fixture
def bench() -> InMemory:
    return InMemory()


class TestInMemory(EdgeClaims):
    """All tests of the driver, on a simulated Linux edge."""


def test_two_services_are_never_joined(bench: InMemory) -> None:
    others = [circuit(10042 + n, 100 + n) for n in range(1, 4)]
    assert not converge(bench, A, *others)
    assert not converge(bench, circuit(10050, 100), *others[:2], circuit(2007, 103))
    assert not converge(bench)
    services = {
        frozenset(port for port in ports if port.startswith(("vni", "stag")))
        for instant in bench.machine.instants
        for ports in instant.values()
    }
    assert max(map(len, services)) == 1
    assert len(bench.machine.instants) > 30


def test_a_refused_removal_never_joins_two_services(bench: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_deletions(program: str, line: str) -> str | None:
        return "Device or resource busy" if line.startswith("link del") else do(program, line)

    assert not converge(bench, A)
    do = bench.machine.do
    monkeypatch.setattr(bench.machine, "do", refuse_deletions)
    with pytest.raises(Refused, match="'link del vni10042' failed"):
        converge(bench, circuit(10050, 100), circuit(10051, 101))
    assert bench.devices() == {"vni10042", "vni10051"}


def test_customer_vlans_are_removed_first_and_devices_are_enabled_last(bench: InMemory) -> None:
    driver = LinuxEdge(EDGE, BACKBONE, PeLine(bench.machine))
    assert driver.list_commands(EdgeDifference(add=(A,), remove=(B,))) == (
        "bridge vlan del dev ac1 vid 101",
        "ip link del stag2007",
        "ip link add vni10042 type vxlan id 10042 local 10.255.0.1 dstport 4789 nolearning",
        "ip link set vni10042 master br0",
        "ip link set vni10042 type bridge_slave learning off",
        "bridge vlan add dev vni10042 vid 100 pvid untagged",
        "bridge vlan add dev ac1 vid 100",
        "ip link set vni10042 up",
    )
    assert driver.list_commands(EdgeDifference()) == ()


def test_circuits_of_an_edge_with_an_ipv6_loopback_are_complete(bench: InMemory) -> None:
    """For an IPv6 address, iproute2 prints ``local6`` instead of ``local``."""
    edge = EDGE.model_copy(update={"loopback": IPv6Address("2001:db8::1")})
    bench.driver = LinuxEdge(edge, BACKBONE, PeLine(bench.machine))
    assert not converge(bench, A)
    assert bench.driver.read(MANAGED).circuits == (A,)


@pytest.mark.parametrize("key", ["group", "group6", "remote", "remote6"])
def test_a_device_with_a_remote_address_is_created_again(bench: InMemory, key: str) -> None:
    assert not converge(bench, A)
    bench.machine.links["vni10042"].data[key] = "2001:db8::2" if key.endswith("6") else "192.0.2.2"
    assert not bench.driver.read(MANAGED).circuits
    assert not converge(bench)
    assert not converge(bench, A)
    assert key not in bench.machine.links["vni10042"].data


@pytest.mark.parametrize("core_port", ["core", None])
def test_a_tunnel_without_an_underlying_interface_is_ignored(bench: InMemory, core_port: str | None) -> None:
    """For such a tunnel, iproute2 prints ``"link": null``."""
    bench.machine.links["sit0"] = Interface("sit")
    edge = EDGE.model_copy(update={"core_port": core_port})
    bench.driver = LinuxEdge(edge, BACKBONE, PeLine(bench.machine))
    assert not converge(bench, A)


def test_a_vlan_of_another_namespace_is_no_service(bench: InMemory) -> None:
    """iproute2 prints no ``link`` for a VLAN of an interface in another network namespace."""
    bench.machine.links["outer"] = Interface("vlan", {"protocol": "802.1ad", "id": 2007})
    bench.driver = LinuxEdge(EDGE.model_copy(update={"core_port": None}), BACKBONE, PeLine(bench.machine))
    assert not converge(bench, A)


def test_a_bridge_with_a_default_pvid_is_unsafe(bench: InMemory) -> None:
    bench.machine.links["br0"].data["vlan_default_pvid"] = 1
    with pytest.raises(Unsafe, match="edge pe1: expected a bridge br0 with vlan_filtering 1 vlan_default_pvid 0 "):
        bench.driver.read(MANAGED)


def test_a_disconnected_edge_is_unreachable_and_answers_later(bench: InMemory) -> None:
    bench.machine.cut_off = True
    with pytest.raises(Unreachable):
        bench.driver.apply(EdgeDifference(add=(A,)))
    bench.machine.cut_off = False
    assert not converge(bench, A)


def test_an_unknown_answer_is_unsafe(bench: InMemory) -> None:
    bench.machine.says = "Dump terminated"
    with pytest.raises(Unsafe, match=r"edge pe1: expected JSON from 'ip -.*', got 'Dump terminated'"):
        bench.driver.read(MANAGED)


@pytest.mark.parametrize(("added", "missing"), [(A, "loopback"), (B, "core_port")])
def test_an_edge_without_a_required_field_is_refused(added: object, missing: str) -> None:
    incomplete = EDGE.model_copy(update={missing: None})
    driver = LinuxEdge(incomplete, BACKBONE, PeLine(LinuxPe()))
    with pytest.raises(Refused, match=f"found no {missing} in the topology: add the edge's {missing}"):
        driver.apply(EdgeDifference(add=(added,)))
