from typing import Any

import pytest

from virtcloud.agent.network.observed_filters import parse_table


@pytest.mark.parametrize(
    "element",
    [{"elem": {"val": "vnet7", "comment": "mine"}}, {"concat": ["vnet7", {"range": ["10.0.0.1", "10.0.0.9"]}]}],
)
def test_an_element_in_a_foreign_form_equals_no_wanted_element(element: dict[str, Any]) -> None:
    sets = [{"set": {"name": "ports", "elem": [element]}}, {"set": {"name": "guests"}}]
    (found,) = parse_table({"nftables": sets}).elements
    assert found[0] == "ports"
    assert found[1:] not in {("vnet7",), ("vnet7", "10.0.0.1")}


@pytest.mark.parametrize(
    "senders",
    [
        {"set": {"name": "senders", "elem": [{"concat": ["vc100-9f3a2b1c", "02:00:00:00:00:01", "ip"]}]}},
        {"map": {"name": "senders", "map": "mark", "elem": [["vc100-9f3a2b1c", 1]]}},
    ],
    ids=["set", "map of numbers"],
)
def test_a_foreign_kind_of_senders_is_a_fault(senders: dict[str, Any]) -> None:
    found = parse_table({"nftables": [{"set": {"name": "ports"}}, {"set": {"name": "guests"}}, senders]})
    assert (found.foreign, "the set senders is missing" in found.faults) == (False, True)


@pytest.mark.parametrize("key", ["vnet7", {"elem": {"val": {"concat": ["vnet7", "ip"]}, "comment": "mine"}}])
@pytest.mark.parametrize("verdict", [{"accept": None}, {"jump": {"target": "mine"}}])
def test_a_foreign_element_of_senders_equals_no_wanted_element(key: object, verdict: dict[str, Any]) -> None:
    senders = {"map": {"name": "senders", "map": "verdict", "elem": [[key, verdict]]}}
    (found,) = parse_table({"nftables": [{"set": {"name": "ports"}}, {"set": {"name": "guests"}}, senders]}).elements
    assert found[0] == "senders"
    assert found[1:4] != ("vnet7", "02:00:00:00:00:01", "ip")


def test_a_table_with_maps_named_like_the_sets_is_foreign() -> None:
    maps = [{"map": {"name": name, "map": "verdict"}} for name in ("ports", "guests")]
    assert parse_table({"nftables": maps}).foreign
