from virtcloud.model.edge import Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, EdgeWanted, compare_edge
from virtcloud.model.values import Name, PortName, VlanId


def circuit(vlan: int, service: int) -> Circuit:
    return Circuit(transport=Name("core"), port=PortName("ac1"), vlan=VlanId(vlan), service=service)


def test_an_edge_in_its_wanted_state_needs_no_change() -> None:
    circuits = (circuit(100, 10100),)
    assert not compare_edge(EdgeWanted(circuits=circuits), EdgeObserved(circuits=circuits))


def test_missing_circuits_are_added_and_unwanted_circuits_removed() -> None:
    common, unwanted, new = circuit(100, 10100), circuit(101, 10101), circuit(102, 10102)
    difference = compare_edge(EdgeWanted(circuits=(common, new)), EdgeObserved(circuits=(unwanted, common)))
    assert difference == EdgeDifference(remove=(unwanted,), add=(new,))


def test_a_circuit_remnant_is_cleared_before_the_circuit_is_created() -> None:
    half = CircuitRemnant(transport=Name("core"), service=10100)
    difference = compare_edge(EdgeWanted(circuits=(circuit(100, 10100),)), EdgeObserved(parts=(half,)))
    assert difference == EdgeDifference(clear=(half,), add=(circuit(100, 10100),))


def test_a_changed_vlan_id_is_another_circuit() -> None:
    before, after = circuit(100, 10100), circuit(101, 10100)
    difference = compare_edge(EdgeWanted(circuits=(after,)), EdgeObserved(circuits=(before,)))
    assert difference == EdgeDifference(remove=(before,), add=(after,))
