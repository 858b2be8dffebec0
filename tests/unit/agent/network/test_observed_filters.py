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
