import pytest
from support.sbf_fakes.readings import read_edge

from sbf_service.drivers.contract import EdgeScope
from sbf_service.reconcile.read_back import check_edge_scope
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, EdgeWanted
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

EDGE = Name("pe3")
EVPN = Transport.model_validate({"name": "evpn", "kind": "evpn", "vnis": "10100-10199", "asn": 65000})
MANAGED = EdgeScope((PortName("ac"),), VlanSet.parse("100-199"), (EVPN,))


def circuit(vlan: int = 100, service: int = 10100, port: str = "ac", transport: str = "evpn") -> Circuit:
    return Circuit(transport=Name(transport), port=PortName(port), vlan=VlanId(vlan), service=service)


def test_a_difference_within_the_scope_is_allowed() -> None:
    """A remnant is the configuration of an incomplete or duplicate circuit.

    SBF may delete a remnant whose service is managed, and a remnant whose port and VLAN are managed.
    """
    incomplete = CircuitRemnant(transport=Name("evpn"), service=10199)
    without_service = CircuitRemnant(transport=Name("evpn"), service=NO_SERVICE, port=PortName("ac"), vlan=VlanId(100))
    check_edge_scope(
        EDGE, MANAGED, EdgeDifference(clear=(incomplete, without_service), remove=(circuit(199),), add=(circuit(),))
    )


@pytest.mark.parametrize(
    "difference",
    [
        EdgeDifference(add=(circuit(vlan=200),)),
        EdgeDifference(add=(circuit(service=10200),)),
        EdgeDifference(remove=(circuit(port="core"),)),
        EdgeDifference(remove=(circuit(transport="other"),)),
        EdgeDifference(clear=(CircuitRemnant(transport=Name("evpn"), service=10099),)),
        EdgeDifference(clear=(CircuitRemnant(transport=Name("evpn"), service=10100, vlan=VlanId(99)),)),
        EdgeDifference(clear=(CircuitRemnant(transport=Name("evpn"), service=NO_SERVICE, vlan=VlanId(100)),)),
    ],
    ids=[
        "foreign VLAN",
        "foreign service",
        "foreign port",
        "foreign transport",
        "remnant of a foreign service",
        "remnant in a foreign VLAN",
        "remnant without service and port",
    ],
)
def test_a_difference_outside_the_scope_is_unsafe(difference: EdgeDifference) -> None:
    with pytest.raises(
        Unsafe, match=r"is outside the managed configuration \(VLAN 100-199 on port ac; services 10100-10199 of evpn\)"
    ):
        check_edge_scope(EDGE, MANAGED, difference)


def test_a_failed_read_back_names_each_circuit() -> None:
    found = EdgeObserved(
        circuits=(circuit(113, 10113),), parts=(CircuitRemnant(transport=Name("evpn"), service=10114),)
    )
    with pytest.raises(Refused) as caught:
        read_edge(EDGE, EdgeWanted(circuits=(circuit(112, 10112),)), found).check_read_back()
    assert str(caught.value) == (
        "edge pe3: wanted VLAN 112 on port ac in service 10112 of evpn, found none; "
        "wanted VLAN 113 on port ac in service 10113 of evpn removed, still found; "
        "found an incomplete circuit (service 10114 of evpn): "
        "read back after the change; check the device's configuration"
    )


def test_an_unconfirmed_edge_may_carry_more_circuits() -> None:
    """Until the edge confirms its wanted state, circuits beyond those of the last confirmed state are no drift."""
    more = EdgeObserved(circuits=(circuit(), circuit(101, 10101)))
    assert not read_edge(EDGE, EdgeWanted(circuits=(circuit(),)), more, behind=True).has_drifted
    assert read_edge(EDGE, EdgeWanted(circuits=(circuit(),)), more).has_drifted


def test_an_edge_that_lost_a_circuit_has_drifted() -> None:
    """A missing circuit of the last confirmed state is drift, even before the edge confirms its wanted state."""
    assert read_edge(EDGE, EdgeWanted(circuits=(circuit(),)), EdgeObserved(), behind=True).has_drifted
