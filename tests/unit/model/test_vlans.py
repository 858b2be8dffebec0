import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.model.errors import BadInput
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

numbers = st.frozensets(st.integers(1, 4094))


@given(numbers)
def test_ranges_are_read_back_as_written(members: frozenset[int]) -> None:
    assert VlanSet.parse(str(VlanSet(members))) == members


@given(numbers, numbers)
def test_set_operations_return_vlan_sets(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = VlanSet(left), VlanSet(right)
    assert (a | b, a & b, a - b) == (left | right, left & right, left - right)
    assert {type(result) for result in (a | b, a & b, a - b)} == {VlanSet}


@given(numbers)
def test_iteration_is_ascending(members: frozenset[int]) -> None:
    assert list(VlanSet(members)) == sorted(members)


def test_overlapping_ranges_are_one_set() -> None:
    assert str(VlanSet.parse("300,5-20,1-10,7,5-20")) == "1-20,300"


def test_ranges_are_written_as_administrators_write_them() -> None:
    assert str(VlanSet([300, 100, 101, 102])) == "100-102,300"
    assert str(VlanSet()) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4095", "expected a VLAN ID from 1 to 4094, got 4095"),
        ("0-5", "expected a VLAN ID from 1 to 4094, got 0"),
        ("20-10", "expected a range with the lower VLAN ID first, got '20-10'"),
        ("1,,2", "expected VLAN ranges such as '100-199,300', got ''"),
        ("a", "expected VLAN ranges such as '100-199,300', got 'a'"),
        ("1," * 20_000 + "1", "expected VLAN ranges of at most 32768 characters, got 40001 characters"),
        ("10_20", "expected VLAN ranges such as '100-199,300', got '10_20'"),
    ],
)
def test_the_error_names_what_is_invalid_in_the_ranges(text: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        VlanSet.parse(text)
    assert str(refusal.value) == message


def test_a_vlan_id_outside_802_1q_is_refused() -> None:
    with pytest.raises(BadInput):
        VlanId(4095)
