from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from support.sbf_fakes.world import three_sites

from virtcloud.model.errors import BadInput
from virtcloud.model.site import SitePart, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import replace_site_part, share_parts

LOOK_UPS = (
    "sites_by_name",
    "site_positions",
    "transports_by_name",
    "elements",
    "hosts",
    "gateways",
    "site_of",
    "peers",
    "access_ports",
    "links_by_site",
    "links_between",
)


def with_new_part(change: Callable[[dict[str, Any]], object], name: str = "praha") -> Topology:
    former = three_sites()
    part = site_part_of(former, name).model_dump(mode="json")
    change(part)
    return replace_site_part(former, SitePart.model_validate(part))


def open_filters(part: dict[str, Any]) -> None:
    part["site"]["hosts"][0]["open_filters"] = True


def add_host(part: dict[str, Any]) -> None:
    part["site"]["switches"][0]["ports"].append("p3")
    part["site"]["hosts"].append({"name": "praha-h3", "ports": ["eth0"]})
    part["links"].append({"a": "praha-h3:eth0", "b": "praha-sw1:p3"})


def remove_host(part: dict[str, Any]) -> None:
    del part["site"]["hosts"][0], part["links"][0]


@pytest.mark.parametrize("change", [open_filters, add_host, remove_host])
def test_derived_look_ups_equal_those_of_a_parsed_topology(change: Callable[[dict[str, Any]], None]) -> None:
    derived = with_new_part(change)
    parsed = Topology.model_validate_json(derived.model_dump_json())
    assert derived == parsed
    for name in LOOK_UPS:
        found, expected = getattr(derived, name), getattr(parsed, name)
        assert found == expected
        assert name == "peers" or list(found) == list(expected)


def test_the_same_part_gives_the_same_topology() -> None:
    assert with_new_part(lambda _part: None, "brno") == three_sites()


def test_a_fault_of_the_new_site_is_found() -> None:
    with pytest.raises(ValidationError, match="host praha-h1 has no link to a switch"):
        with_new_part(lambda part: part["links"].pop(0))


def test_the_name_of_another_sites_element_is_refused() -> None:
    def rename(part: dict[str, Any]) -> None:
        part["site"]["hosts"][0]["name"] = "brno-h1"
        part["links"][0]["a"] = "brno-h1:eth0"

    with pytest.raises(ValidationError, match="got brno-h1 twice"):
        with_new_part(rename)


def test_a_link_to_another_site_is_refused() -> None:
    with pytest.raises(BadInput, match="to change links to other sites, replace the whole topology"):
        with_new_part(lambda part: part["links"][0].update(b="brno-sw1:p1"))


def test_a_changed_copy_has_its_own_look_ups() -> None:
    topology = three_sites()
    assert len(topology.sites_by_name) == 3
    assert list(topology.model_copy(update={"sites": topology.sites[:1]}).sites_by_name) == ["brno"]


def reverse_ports(part: dict[str, Any]) -> None:
    part["site"]["switches"][0]["ports"].reverse()


def add_unlinked_port(part: dict[str, Any]) -> None:
    part["site"]["hosts"][0]["ports"].append("eth9")


def add_uplink(part: dict[str, Any]) -> None:
    add_unlinked_port(part)
    part["site"]["switches"][0]["ports"].append("p9")
    part["links"].append({"a": "praha-h1:eth9", "b": "praha-sw1:p9"})


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (open_filters, True),
        (add_unlinked_port, True),
        (add_uplink, False),
        (add_host, False),
        (remove_host, False),
        (reverse_ports, False),
    ],
)
def test_only_equal_paths_keep_computed_paths(change: Callable[[dict[str, Any]], object], kept: bool) -> None:
    former = three_sites().model_copy()
    former.computed["path"] = "computed"
    part = site_part_of(former, "praha").model_dump(mode="json")
    change(part)
    replaced = share_parts(replace_site_part(former, SitePart.model_validate(part)), former)
    assert replaced.computed == ({"path": "computed"} if kept else {})


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_links_between_moved_elements_belong_to_their_new_sites(order: list[int]) -> None:
    former = three_sites()
    first, second, *_ = former.sites
    exchanged = [
        first.model_copy(update={"name": second.name, "admits": None}),
        second.model_copy(update={"name": first.name, "admits": None}),
        *former.sites[2:],
    ]
    topology = former.model_copy(update={"sites": tuple(exchanged[index] for index in order)})
    shared = share_parts(topology, former)
    parsed = Topology.model_validate_json(shared.model_dump_json())
    for name in LOOK_UPS:
        assert getattr(shared, name) == getattr(parsed, name)


def test_equal_links_reuse_the_former_groups_by_site() -> None:
    former, document = three_sites(), three_sites().model_dump(mode="json")
    for site in document["sites"]:
        site["hosts"][0]["open_filters"] = True
    shared = share_parts(Topology.model_validate(document), former)
    assert all(shared.links_by_site[name] is links for name, links in former.links_by_site.items())
    assert shared.links_between is former.links_between
