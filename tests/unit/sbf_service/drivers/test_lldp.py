"""The parsers of LLDP neighbours: unknown output is an error, never an empty list (``switch/lldp.py``)."""

import pytest

from sbf_service.domain.cabling import Neighbour, is_mac
from sbf_service.drivers.switch import lldp
from sbf_service.drivers.switch.dialects import DIALECTS
from sbf_service.drivers.switch.lldp import LldpFormat, parse_neighbours

NEIGHBOUR = """
Chassis id: 0200.0000.00aa
Port id: Ethernet1/1
Local Port id: Eth1/3
Port Description: not advertised
System Name: not advertised
Management Address: not advertised
"""


def lldp_format(platform: str) -> LldpFormat:
    form = DIALECTS[platform].lldp
    assert form is not None
    return form


def test_every_dialect_can_read_neighbours() -> None:
    assert [name for name, dialect in DIALECTS.items() if dialect.lldp is None] == []


def test_a_neighbour_without_names_is_parsed() -> None:
    found = parse_neighbours(lldp_format("cisco_nxos"), f"{NEIGHBOUR}\nTotal entries displayed: 1")
    assert found == (Neighbour("Eth1/3", "0200.0000.00aa", "Ethernet1/1"),)


def test_a_wrong_number_of_neighbours_is_an_error() -> None:
    """The device prints the number of its neighbours. The output must list this number of neighbours."""
    with pytest.raises(ValueError, match="the device prints that it has 2 neighbours, found 1"):
        parse_neighbours(lldp_format("cisco_nxos"), f"{NEIGHBOUR}\nTotal entries displayed: 2")


def test_a_neighbour_without_the_local_port_is_an_error() -> None:
    old = "-----\nChassis id: 0200.0000.00aa\nPort id: Gi0/1\nSystem Name: sw2\n\nTotal entries displayed: 1"
    with pytest.raises(ValueError, match="neighbour sw2 is shown without the local port"):
        parse_neighbours(lldp_format("cisco_ios"), old)


def test_the_first_matching_line_counts() -> None:
    """EOS prints a second ``Port ID`` in the section on link aggregation."""
    output = (
        "Interface Ethernet1 detected 1 LLDP neighbors:\n\n  Neighbor 0200.0000.00aa/Ethernet7, age 1 second\n"
        '    Port ID     : "Ethernet7"\n  - IEEE802.3 Link Aggregation\n    Port ID                : 0\n'
    )
    assert parse_neighbours(lldp_format("arista_eos"), output)[0].port == "Ethernet7"


def test_the_output_of_lldpcli_on_debian_12_is_parsed() -> None:
    """The output is recorded from lldpd 1.0.16 and shortened."""
    output = """{"lldp": [{"interface": [{"name": "p1", "via": "LLDP", "rid": "1", "age": "0 day, 00:00:25",
      "chassis": [{"id": [{"type": "mac", "value": "c2:17:0c:95:47:52"}], "name": [{"value": "brno-h1"}],
                   "mgmt-ip": [{"value": "198.18.1.4"}], "capability": [{"type": "Bridge", "enabled": false}]}],
      "port": [{"id": [{"type": "mac", "value": "c2:17:0c:95:47:52"}], "descr": [{"value": "eth0"}],
                "ttl": [{"value": "120"}]}]}]}]}"""
    mac = "c2:17:0c:95:47:52"
    assert lldp.parse_lldpd_neighbours(output) == (Neighbour("p1", mac, mac, "brno-h1", "eth0", "198.18.1.4"),)


def test_another_output_of_lldpcli_is_an_error() -> None:
    assert lldp.parse_lldpd_neighbours('{"lldp": [{}]}') == ()
    with pytest.raises(ValueError, match="faults"):
        lldp.parse_lldpd_neighbours('{"chassis": []}')


def test_an_lldpd_neighbour_without_its_port_is_an_error() -> None:
    neighbour = '{"name": "p1", "chassis": [{"name": [{"value": "sw2"}]}], "port": [{"id": []}]}'
    with pytest.raises(ValueError, match="neighbour sw2 is shown without the neighbour's port"):
        lldp.parse_lldpd_neighbours(f'{{"lldp": [{{"interface": [{neighbour}]}}]}}')


@pytest.mark.parametrize("text", ["0200.0000.00aa", "02:00:00:00:00:AA", "c025a5-aabb01", "c0 25 a5 aa bb 01"])
def test_a_mac_address_is_recognized_in_any_punctuation(text: str) -> None:
    assert is_mac(text)


def test_the_text_of_a_neighbour_is_printable() -> None:
    assert str(Neighbour("p1", "aa", "eth0", "\x1b[2Jhost\x00")) == "\ufffd[2Jhost\ufffd, port eth0"
