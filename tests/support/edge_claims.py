"""Tests of the Linux edge driver on benches with a simulated Linux edge or with a real kernel.

Each bench has a bridge ``br0`` with the managed ports ac1 and ac2 and the unmanaged port ``other``. Port ``core`` is
not in the bridge.
"""

from typing import ClassVar, Protocol

import pytest

from sbf_service.drivers.contract import EdgeDriver, EdgeScope
from sbf_service.reconcile.read_back import check_edge_scope
from virtcloud.model.edge import Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, EdgeWanted, compare_edge
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

EDGE = Edge.model_validate(
    {
        "name": "pe1",
        "platform": "linux_edge",
        "address": "192.0.2.1",
        "ports": ["ac1", "ac2"],
        "loopback": "10.255.0.1",
        "core_port": "core",
    }
)
OVERLAY = Transport.model_validate({"name": "overlay", "kind": "evpn", "asn": 65000, "vnis": "10000-16777215"})
STAGS = Transport.model_validate({"name": "stags", "kind": "qinq", "s_tags": "2000-2099"})
MANAGED = EdgeScope((PortName("ac1"), PortName("ac2")), VlanSet.parse("100-199"), (OVERLAY, STAGS))


class Bench(Protocol):
    """A Linux edge, real or simulated, and its driver."""

    driver: EdgeDriver

    def do(self, program: str, *lines: str) -> None: ...
    def carries(self) -> dict[str, dict[int, str]]: ...
    def devices(self) -> set[str]: ...


def circuit(service: int, vlan: int, port: str = "ac1") -> Circuit:
    transport = STAGS if service < 4095 else OVERLAY
    return Circuit(transport=transport.name, port=PortName(port), vlan=VlanId(vlan), service=service)


def remnant(service: int, vlan: int | None = None, port: str | None = None) -> CircuitRemnant:
    transport = STAGS.name if 2000 <= service < 4095 else OVERLAY.name
    vlan_id = None if vlan is None else VlanId(vlan)
    return CircuitRemnant(
        transport=transport, service=service, port=None if port is None else PortName(port), vlan=vlan_id
    )


def converge(bench: Bench, *wanted: Circuit) -> EdgeDifference:
    target = EdgeWanted(circuits=wanted)
    difference = compare_edge(target, bench.driver.read(MANAGED))
    check_edge_scope(EDGE.name, MANAGED, difference)
    bench.driver.apply(difference)
    return compare_edge(target, bench.driver.read(MANAGED))


A = circuit(10042, 100)
B = circuit(2007, 101)
VNI_A = (
    "link add vni10042 type vxlan id 10042 local 10.255.0.1 dstport 4789 nolearning",
    "link set vni10042 master br0",
    "link set vni10042 type bridge_slave learning off",
)
UNTAGGED = "PVID, Egress Untagged"


class KernelClaims:
    """The tests that run on both kinds of benches. Each subclass provides the fixture ``bench``."""

    nothing: ClassVar = EdgeObserved()

    def test_a_new_edge_has_no_circuits(self, bench: Bench) -> None:
        assert bench.driver.read(MANAGED) == self.nothing

    def test_circuits_of_evpn_and_qinq_are_created_and_read(self, bench: Bench) -> None:
        assert not converge(bench, A, B)
        assert bench.devices() == {"vni10042", "stag2007"}
        assert bench.carries() == {
            "ac1": {100: "", 101: ""},
            "vni10042": {100: UNTAGGED},
            "stag2007": {101: UNTAGGED},
        }

    def test_a_change_may_be_repeated(self, bench: Bench) -> None:
        assert not converge(bench, B)
        difference = compare_edge(EdgeWanted(circuits=(A,)), bench.driver.read(MANAGED))
        bench.driver.apply(difference)
        bench.driver.apply(difference)
        assert bench.driver.read(MANAGED) == EdgeObserved(circuits=(A,))

    @pytest.mark.parametrize(
        ("ip", "bridge", "parts"),
        [
            (VNI_A[:1], (), (remnant(10042),)),
            (VNI_A, (), (remnant(10042),)),
            (VNI_A, ("vlan add dev vni10042 vid 100 pvid untagged",), (remnant(10042, 100),)),
            (
                VNI_A,
                ("vlan add dev vni10042 vid 100 pvid untagged", "vlan add dev ac1 vid 100"),
                (remnant(10042, 100, "ac1"),),
            ),
            (
                (
                    "link add link core name stag2007 type vlan proto 802.1ad id 2007",
                    "link set stag2007 master br0 up",
                ),
                ("vlan add dev stag2007 vid 101 untagged", "vlan add dev ac1 vid 101"),
                (remnant(2007, 101, "ac1"),),
            ),
            ((), ("vlan add dev ac2 vid 100",), (remnant(0, 100, "ac2"),)),
            (
                (VNI_A[0].replace("10.255.0.1", "10.255.0.9"), *VNI_A[1:], "link set vni10042 up"),
                ("vlan add dev vni10042 vid 100 pvid untagged", "vlan add dev ac1 vid 100"),
                (remnant(10042, 100, "ac1"),),
            ),
        ],
        ids=[
            "device alone",
            "in the bridge",
            "without port",
            "down",
            "no PVID",
            "port alone",
            "another loopback",
        ],
    )
    def test_an_incomplete_circuit_is_read_and_completed(
        self, bench: Bench, ip: tuple[str, ...], bridge: tuple[str, ...], parts: tuple[CircuitRemnant, ...]
    ) -> None:
        bench.do("ip", *ip)
        bench.do("bridge", *bridge)
        assert bench.driver.read(MANAGED) == EdgeObserved(parts=parts)
        assert not converge(bench, A)
        assert bench.carries() == {"ac1": {100: ""}, "vni10042": {100: UNTAGGED}}

    def test_two_services_in_one_vlan_are_incomplete(self, bench: Bench) -> None:
        assert not converge(bench, A, B)
        bench.do("bridge", "vlan del dev stag2007 vid 101", "vlan add dev stag2007 vid 100 pvid untagged")
        assert bench.driver.read(MANAGED).circuits == ()
        assert not converge(bench, A, B)
        assert bench.carries()["stag2007"] == {101: UNTAGGED}

    def test_unmanaged_configuration_is_not_read_or_changed(self, bench: Bench) -> None:
        bench.do(
            "ip",
            "link add vx500 type vxlan id 500 local 10.255.0.1 dstport 4789 nolearning",
            "link set vx500 master br0",
            "link add link core name core.2007 type vlan proto 802.1Q id 2007",
            "link add link core name core.5 type vlan proto 802.1ad id 5",
        )
        unmanaged = ("vlan add dev vx500 vid 50 pvid untagged", "vlan add dev ac1 vid 50", "vlan add dev other vid 50")
        bench.do("bridge", *unmanaged)
        before = bench.devices(), bench.carries()
        assert bench.driver.read(MANAGED) == self.nothing
        assert not converge(bench, A, B)
        assert not converge(bench)
        assert (bench.devices(), bench.carries()) == before

    @pytest.mark.parametrize(
        ("ip", "bridge", "message"),
        [
            (
                ("link add vx500 type vxlan id 10050 local 10.255.0.1 dstport 4789",),
                (),
                "expected services only on devices with names vni… or stag…, found vx500 (vxlan, id 10050)",
            ),
            (
                ("link add link core name core.2007 type vlan proto 802.1ad id 2007",),
                (),
                "expected services only on devices with names vni… or stag…, found core.2007 (vlan, id 2007)",
            ),
            (
                ("link add vni10042 type dummy",),
                (),
                "expected services only on devices with names vni… or stag…, found vni10042 (dummy, id none)",
            ),
            (
                VNI_A,
                ("vlan add dev vni10042 vid 50 pvid untagged",),
                "expected device vni10042 in managed VLANs only, found VLAN",
            ),
            (
                (),
                ("vlan add dev ac1 vid 100 untagged",),
                "expected VLAN 100 on port ac1 tagged or absent, found E",
            ),
        ],
    )
    def test_managed_services_and_vlans_in_other_use_are_unsafe(
        self, bench: Bench, ip: tuple[str, ...], bridge: tuple[str, ...], message: str
    ) -> None:
        bench.do("ip", *ip)
        bench.do("bridge", *bridge)
        with pytest.raises(Unsafe) as caught:
            bench.driver.read(MANAGED)
        assert str(caught.value).startswith(f"edge pe1: {message}")

    def test_a_vlan_of_an_unmanaged_port_is_in_other_use(self, bench: Bench) -> None:
        bench.do("bridge", "vlan add dev other vid 100")
        assert bench.driver.read(MANAGED) == EdgeObserved(
            foreign=(ForeignVlan(vlan=VlanId(100), ports=(PortName("other"),)),)
        )

    def test_a_port_that_is_not_in_the_bridge_is_unsafe(self, bench: Bench) -> None:
        scope = EdgeScope((PortName("core"),), MANAGED.vlans, MANAGED.transports)
        with pytest.raises(Unsafe) as caught:
            bench.driver.read(scope)
        assert str(caught.value) == (
            "edge pe1: expected port core in bridge br0, found the ports ac1, ac2, other: "
            "correct the topology, or: ip link set core master br0"
        )

    def test_a_refused_command_is_quoted_and_the_others_are_applied(self, bench: Bench) -> None:
        with pytest.raises(Refused) as caught:
            bench.driver.apply(EdgeDifference(add=(circuit(10042, 100, "nix"), circuit(10043, 101))))
        assert "edge pe1: 'vlan add dev nix vid 100' failed: the edge printed 'Cannot find " in str(caught.value)
        assert bench.driver.read(MANAGED).circuits == (circuit(10043, 101),)


class EdgeClaims(KernelClaims):
    """All tests of the driver: the tests above, and tests that run only on a simulated Linux edge."""

    def test_only_unwanted_circuits_are_removed(self, bench: Bench) -> None:
        assert not converge(bench, A, B)
        assert not converge(bench, B)
        assert (bench.devices(), bench.carries()["ac1"]) == ({"stag2007"}, {101: ""})
        assert not converge(bench)
        assert (bench.devices(), bench.carries()) == (set(), {})

    def test_a_vlan_moves_to_another_service_in_one_change(self, bench: Bench) -> None:
        assert not converge(bench, A)
        assert not converge(bench, circuit(10043, 100))
        assert (bench.devices(), bench.carries()["ac1"]) == ({"vni10043"}, {100: ""})

    def test_a_service_used_on_another_port_keeps_its_device(self, bench: Bench) -> None:
        assert not converge(bench, A, circuit(10042, 100, "ac2"))
        assert not converge(bench, A)
        assert bench.carries() == {"ac1": {100: ""}, "vni10042": {100: UNTAGGED}}

    def test_a_hundred_circuits_are_created_and_removed(self, bench: Bench) -> None:
        many = tuple(circuit(10000 + vlan, vlan) for vlan in range(100, 200))
        assert not converge(bench, *many)
        assert len(bench.devices()) == 100
        assert not converge(bench)
        assert (bench.devices(), bench.carries()) == (set(), {})

    def test_the_refusal_of_an_unknown_transport_contains_its_name(self, bench: Bench) -> None:
        foreign = Circuit(transport=Name("core"), port=PortName("ac1"), vlan=VlanId(100), service=7)
        with pytest.raises(Refused, match="edge pe1: wanted a circuit of transport core, found only overlay, stags"):
            bench.driver.apply(EdgeDifference(add=(foreign,)))

    def test_a_circuit_on_a_disabled_port_is_reported_as_down(self, bench: Bench) -> None:
        assert not converge(bench, A, circuit(10042, 100, "ac2"))
        bench.do("ip", "link set ac1 down")
        assert bench.driver.read(MANAGED).down == (A,)
        bench.do("ip", "link set ac1 up")
        assert bench.driver.read(MANAGED).down == ()
