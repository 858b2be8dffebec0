"""Tests of surveys of a site's switches: the proposed pool of VLAN IDs, and the draft of the topology."""

from typing import Any

import pytest

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.site_survey import list_port_vlans, make_site_survey, propose_pool
from sbf_service.domain.survey_draft import PortSurvey, SwitchSurvey
from virtcloud.model.element import Switch
from virtcloud.model.port_use import PortUse
from virtcloud.model.site_survey import SiteSurvey
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

UNUSED = PortSurvey(PortUse(), VlanSet())
MEMBER = PortSurvey(PortUse(mode="aggregated"), VlanSet([50]), is_member=True)


def switch(name: str, *ports: str, neighbours: tuple[Neighbour, ...] = (), **more: Any) -> SwitchSurvey:
    element = Switch(name=Name(name), ports=(PortName("any"),), platform="cisco_ios", address="192.0.2.1")
    return SwitchSurvey(element, ports=more.pop("surveys", dict.fromkeys(ports, UNUSED)), neighbours=neighbours, **more)


def sees(local: str, name: str, port: str, description: str = "") -> Neighbour:
    return Neighbour(local, chassis="02:00:00:00:00:01", port=port, name=name, port_description=description)


def describe(*surveys: SwitchSurvey, hosts: tuple[str, ...] = ()) -> SiteSurvey:
    return make_site_survey(Name("brno"), surveys, hosts, lambda _element, port: port, pool_size=100)


def links(survey: SiteSurvey) -> set[frozenset[str]]:
    return {frozenset((link.a, link.b)) for link in survey.draft.links}


@pytest.mark.parametrize(
    ("free", "size", "pool"),
    [
        ("2-4094", 100, "100-199"),
        ("2-149,160-400", 100, "160-259"),
        ("2-90,1000-1049", 100, "2-90"),
        ("2-20,1000-1049", 100, "1000-1049"),
        ("", 100, ""),
    ],
)
def test_the_proposed_pool_is_the_first_range_that_fits(free: str, size: int, pool: str) -> None:
    assert propose_pool(VlanSet.parse(free), size) == VlanSet.parse(pool)


def test_a_port_that_carries_every_vlan_lists_none() -> None:
    every = VlanSet(range(1, 4095))
    assert list_port_vlans(every, VlanSet([7]), None, is_open=False) == VlanSet([7])
    assert list_port_vlans(VlanSet([5]), VlanSet(), None, is_open=True) == VlanSet()


def test_a_cable_seen_from_one_end_is_a_link() -> None:
    survey = describe(switch("sw1", "p1", neighbours=(sees("p1", "SW2.example.org", "p7"),)), switch("sw2", "p7"))
    assert links(survey) == {frozenset(("sw1:p1", "sw2:p7"))}


def test_an_unread_switch_gets_the_ports_that_others_see() -> None:
    first = switch("sw1", "p1", neighbours=(sees("p1", "sw2", "p7"),))
    survey = describe(first, switch("sw2", is_read=False, fault="switch sw2 does not answer"))
    assert links(survey) == {frozenset(("sw1:p1", "sw2:p7"))}
    assert survey.faults == ("switch sw2 does not answer",)


@pytest.mark.parametrize(("is_read", "unread"), [(False, "the switch"), (True, "its LLDP neighbours")])
def test_a_fault_and_not_lldp_explains_a_missing_switch(is_read: bool, unread: str) -> None:
    notes = describe(switch("sw1", "p1"), switch("sw2", is_read=is_read, fault="switch sw2 refuses")).notes
    (note,) = (note for note in notes if note.startswith("switch sw2"))
    assert note.startswith(f"switch sw2 is not in the draft, because {unread} could not be read: correct the cause")


def test_without_a_reading_no_note_describes_the_draft() -> None:
    assert describe(switch("sw1", is_read=False, fault="switch sw1 does not answer")).notes == ()


def test_members_of_an_aggregate_are_named_and_not_linked() -> None:
    neighbours = (sees("p1", "sw2", "p1"), sees("p2", "sw2", "p2"))
    first = switch("sw1", surveys={"p1": MEMBER, "p2": MEMBER, "po1": UNUSED}, neighbours=neighbours)
    survey = describe(first, switch("sw2", "p1", "p2"))
    assert links(survey) == set()
    assert "members of link aggregates: sw1:p1, sw1:p2" in "\n".join(survey.notes)
    assert survey.vlans == ()


def test_a_port_with_two_neighbours_is_not_linked() -> None:
    neighbours = (sees("p1", "sw2", "p1"), sees("p1", "sw2", "p2"))
    survey = describe(switch("sw1", "p1", neighbours=neighbours), switch("sw2", "p1", "p2"))
    assert links(survey) == set()
    assert "port sw1:p1 has 2 LLDP neighbours: add the link to the draft yourself" in survey.notes


def test_a_neighbour_at_a_management_port_is_listed_only() -> None:
    survey = describe(switch("sw1", "p1", neighbours=(sees("mgmt 0", "sw2", "p1"),)), switch("sw2", "p1"))
    assert links(survey) == set()
    assert [(other.port, other.name) for other in survey.others] == [("mgmt 0", "sw2")]


@pytest.mark.parametrize(
    ("port", "description", "linked"),
    [("eth0", "", "node1:eth0"), ("02:00:00:00:00:01", "eno1 to the switch", "node1:eno1"), ("3", "", None)],
)
def test_a_host_is_linked_by_the_name_of_its_interface(port: str, description: str, linked: str | None) -> None:
    survey = describe(switch("sw1", "p1", neighbours=(sees("p1", "node1", port, description),)), hosts=("node*",))
    assert links(survey) == (set() if linked is None else {frozenset(("sw1:p1", linked))})


def test_listed_ports_are_in_the_draft_without_lldp() -> None:
    survey = describe(switch("sw1", "p1", "p2", listed_ports=(PortName("p2"),)))
    assert survey.draft.site.switches[0].ports == ("p2",)
