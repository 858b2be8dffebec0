"""Tests of the cable check, which compares reported neighbours with the links of the topology."""

import pytest

from sbf_service.domain.cabling import Neighbour, check_cables
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.element import Switch
from virtcloud.model.site import CableState, CableView
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortRef

TOPOLOGY = Topology.model_validate(
    {
        "name": "one-site",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [
            {
                "name": "brno",
                "attachments": [{"transport": "core", "port": "brno-sw1:Gi1/0/48"}],
                "switches": [
                    {
                        "name": "brno-sw1",
                        "platform": "cisco_ios",
                        "address": "192.0.2.1:22",
                        "ports": ["Gi1/0/1", "Gi1/0/2", "Gi1/0/3", "Gi1/0/24", "Gi1/0/48"],
                    },
                    {
                        "name": "brno-sw2",
                        "platform": "dell_force10",
                        "address": "192.0.2.2",
                        "ports": ["Te0/1", "Te0/2"],
                    },
                ],
                "hosts": [{"name": f"brno-h{n}", "ports": ["eth0", "eth1"]} for n in (1, 2)],
            }
        ],
        "links": [
            {"a": "brno-h1:eth0", "b": "brno-sw1:Gi1/0/1"},
            {"a": "brno-h2:eth0", "b": "brno-sw1:Gi1/0/2"},
            {"a": "brno-sw1:Gi1/0/24", "b": "brno-sw2:Te0/1"},
        ],
    }
)
MEMBERS = ["Gi1/0/1", "Gi1/0/2", "Gi1/0/3"]
SW1, SW2 = Name("brno-sw1"), Name("brno-sw2")


def canonical(element: Name, port: str) -> str:
    device = TOPOLOGY.element(element)
    return SWITCH_PLATFORMS[device.platform].port(port) if isinstance(device, Switch) else port


def neighbour(local: str, name: str, port: str, description: str = "", address: str = "") -> Neighbour:
    return Neighbour(local, "0200.0000.00aa", port, name, description, address)


RIGHT1 = neighbour("GigabitEthernet1/0/1", "brno-h1", "eth0")
RIGHT2 = neighbour("Gi1/0/2", "BRNO-H2.example.org", "02:00:00:00:00:02", "eth0")
TRUNK1 = neighbour("Gi1/0/24", "brno-sw2", "TenGigabitEthernet 0/1")
TRUNK2 = neighbour("Te 0/1", "brno-sw1.example.org", "Gi1/0/24", "to the second")


def views(sw1: tuple[Neighbour, ...] | None, sw2: tuple[Neighbour, ...] | None = (TRUNK2,)) -> dict[str, CableView]:
    """Return the cable views of site brno. A key is a cable's ends: ``brno-h1:eth0 brno-sw1:Gi1/0/1``.

    Each argument has the neighbours that one switch reported, or is None if the switch was not read.
    """
    observed = {name: neighbours for name, neighbours in ((SW1, sw1), (SW2, sw2)) if neighbours is not None}
    checked = check_cables(TOPOLOGY, TOPOLOGY.site("brno"), observed, canonical)
    return {f"{view.a} {view.b}": view for view in checked}


H1, H2 = "brno-h1:eth0 brno-sw1:Gi1/0/1", "brno-h2:eth0 brno-sw1:Gi1/0/2"
TRUNK = "brno-sw1:Gi1/0/24 brno-sw2:Te0/1"


def states(found: dict[str, CableView]) -> dict[str, str]:
    return {ends: str(view.state) for ends, view in found.items() if view.state is not CableState.RIGHT}


def test_any_form_of_names_and_ports_is_recognised() -> None:
    assert states(views((RIGHT1, RIGHT2, TRUNK1))) == {}


def test_the_first_word_of_a_description_identifies_a_port() -> None:
    """On Comware, the default description of a port has the form ``GigabitEthernet1/0/24 Interface``."""
    described = neighbour("Te 0/1", "brno-sw1", "0200.0000.0001", "GigabitEthernet1/0/24 Interface")
    assert states(views((RIGHT1, RIGHT2), (described,))) == {}


def test_the_cables_of_other_sites_are_not_listed() -> None:
    other = {"name": "praha", "switches": [{"name": "praha-sw1", "platform": "cisco_ios", "ports": ["Gi1/0/1"]}]}
    document = TOPOLOGY.model_dump(mode="json")
    made = Topology.model_validate({**document, "sites": [*document["sites"], other]})
    assert check_cables(made, made.site("praha"), {}, canonical) == ()


def test_a_cable_is_right_if_either_end_sees_the_other() -> None:
    assert states(views((RIGHT1, RIGHT2), (TRUNK2,))) == {}
    assert states(views((RIGHT1, RIGHT2, TRUNK1), None)) == {}


def test_swapped_cables_are_reported_with_both_ends() -> None:
    found = views((neighbour("Gi1/0/1", "brno-h2", "eth0"), neighbour("Gi1/0/2", "brno-h1", "eth0"), TRUNK1))
    assert states(found) == {H1: "other-neighbour", H2: "other-neighbour"}
    assert found[H1].found == (
        "brno-sw1:Gi1/0/1 sees brno-h2:eth0",
        "brno-h1:eth0 is seen at brno-sw1:Gi1/0/2",
    )


def test_a_cable_in_another_port_is_reported_with_that_port() -> None:
    found = views((neighbour("Gi1/0/1", "brno-h1", "eth1"), RIGHT2, TRUNK1))
    assert states(found) == {H1: "other-port"}
    assert found[H1].found == ("brno-sw1:Gi1/0/1 sees brno-h1:eth1",)


def test_a_cable_in_a_port_outside_the_topology_is_reported() -> None:
    found = views((RIGHT1, RIGHT2, neighbour("Gi1/0/24", "brno-sw2", "TenGigabitEthernet 0/47")), ())
    assert states(found) == {TRUNK: "other-port"}
    assert found[TRUNK].found == ("brno-sw1:Gi1/0/24 sees brno-sw2, port TenGigabitEthernet 0/47",)


@pytest.mark.parametrize(
    "local", ["Gi1/0/3", "Gi1/0/47"], ids=["a free port of the topology", "a port outside the topology"]
)
def test_a_moved_cable_is_reported_once_with_its_new_port(local: str) -> None:
    found = views((neighbour(local, "brno-h1", "eth0"), RIGHT2, TRUNK1))
    assert states(found) == {H1: "elsewhere"}
    (text,) = found[H1].found
    assert text in (f"brno-h1:eth0 is seen at brno-sw1:{form}{local[2:]}" for form in ("Gi", "GigabitEthernet"))


def test_an_unlisted_cable_is_reported_once() -> None:
    extra = neighbour("Gi1/0/3", "brno-sw2", "Te 0/2"), neighbour("Te 0/2", "brno-sw1", "Gi1/0/3")
    found = views((RIGHT1, RIGHT2, TRUNK1, extra[0]), (TRUNK2, extra[1]))
    assert states(found) == {"brno-sw1:Gi1/0/3 brno-sw2:Te0/2": "unlisted"}


def test_unknown_neighbours_are_wrong_and_unnamed_neighbours_are_unknown() -> None:
    found = views((neighbour("Gi1/0/1", "printer7", "1"), neighbour("Gi1/0/2", "", "02:00:00:00:00:02"), TRUNK1))
    assert states(found) == {H1: "other-neighbour", H2: "unknown"}
    assert "the topology has no such name; is this brno-h1?" in found[H1].found[0]
    assert "configure this device to send its system name by LLDP" in found[H2].found[0]


def test_a_port_without_neighbour_is_unknown_not_wrong() -> None:
    found = views((RIGHT2, TRUNK1))
    assert states(found) == {H1: "unknown"}
    assert not found[H1].is_wrong
    assert found[H1].found == ("brno-sw1:Gi1/0/1 sees no neighbour: is the port up, and does brno-h1 send LLDP?",)


def test_a_port_identified_by_number_or_mac_is_unknown() -> None:
    found = views(
        (neighbour("Gi1/0/1", "brno-h1", "02:00:00:00:00:01"), neighbour("Gi1/0/2", "brno-h2", "526"), TRUNK1)
    )
    assert states(found) == {H1: "unknown", H2: "unknown"}


def test_a_management_address_identifies_a_renamed_switch() -> None:
    named = neighbour("Gi1/0/24", "rack7-top", "Te 0/1", address="192.0.2.2")
    assert states(views((RIGHT1, RIGHT2, named), None)) == {}


def test_a_cable_between_unread_devices_is_unknown_with_the_reason() -> None:
    found = views(None, (TRUNK2,))
    assert states(found) == {H1: "unknown", H2: "unknown"}
    assert found[H1].found == ("neither brno-h1 nor brno-sw1 could be read",)


def test_a_cable_is_right_with_one_expected_neighbour_of_several() -> None:
    assert states(views((neighbour("Gi1/0/1", "phone-12", "LAN"), RIGHT1, RIGHT2, TRUNK1))) == {}


def test_neighbours_in_the_backbone_are_ignored() -> None:
    """The neighbour of an uplink is a device of the backbone, or, through a tunnel, a switch of another site."""
    assert states(views((RIGHT1, RIGHT2, TRUNK1, neighbour("Gi1/0/48", "brno-sw2", "Te 0/2")))) == {}


def test_cables_between_unmanaged_ports_are_ignored() -> None:
    assert states(views((RIGHT1, RIGHT2, TRUNK1, neighbour("Gi0/0", "brno-sw2", "ManagementEthernet 0/0")))) == {}
    assert states(views((RIGHT1, RIGHT2, TRUNK1, neighbour("Gi0/0", "brno-sw2", "Te 0/2")))) == {}


def test_a_cable_is_wrong_if_its_ends_disagree() -> None:
    found = views((RIGHT1, RIGHT2, TRUNK1), (neighbour("Te 0/1", "brno-h2", "eth1"),))
    assert states(found) == {TRUNK: "other-neighbour"}
    assert found[TRUNK].b == PortRef("brno-sw2:Te0/1")
    assert found[TRUNK].found == ("brno-sw2:Te0/1 sees brno-h2:eth1",)


def test_aggregate_members_are_compared_in_any_order() -> None:
    site = {
        "name": "brno",
        "switches": [{"name": "brno-sw1", "platform": "cisco_ios", "ports": ["Po1"], "aggregates": {"Po1": MEMBERS}}],
        "hosts": [{"name": "brno-h1", "ports": ["bond0"], "aggregates": {"bond0": ["eth0", "eth1", "eth2"]}}],
    }
    link = {"a": "brno-h1:bond0", "b": "brno-sw1:Po1"}
    made = Topology.model_validate({"name": "bonded", "sites": [site], "links": [link]})
    crossed = neighbour("Gi1/0/1", "brno-h1", "eth1"), neighbour("Gi1/0/2", "brno-h1", "eth0")
    found = check_cables(made, made.sites[0], {SW1: (*crossed, neighbour("Gi1/0/3", "brno-h1", "eth7"))}, canonical)
    assert [(view.a, view.b, str(view.state)) for view in found] == [
        ("brno-h1:eth0", "brno-sw1:Gi1/0/1", "right"),
        ("brno-h1:eth1", "brno-sw1:Gi1/0/2", "right"),
        ("brno-h1:eth2", "brno-sw1:Gi1/0/3", "other-port"),
    ]
