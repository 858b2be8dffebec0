"""PURE. ``sbf dumpstate``: networks as XML, a line for each tag and each host, as scripts of old read it with grep."""

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from virtcloud.torque.networks import Network


def dumped(networks: Iterable[Network]) -> str:
    """Write ``<vlan ID="…">`` with its ``<host>``s and a ``<tag>``: one for each site where their numbers differ."""
    state = ET.Element("state")
    for network in networks:
        vlan = ET.SubElement(state, "vlan", ID=network.root.key)
        numbers = network.root.vlans
        if len(set(numbers.values())) == 1:
            ET.SubElement(vlan, "tag").text = str(next(iter(numbers.values())))
        else:
            for site, number in sorted(numbers.items()):
                ET.SubElement(vlan, "tag", site=site).text = str(number)
        for host in network.hosts:
            ET.SubElement(vlan, "host").text = host
    ET.indent(state)
    return ET.tostring(state, encoding="unicode")
