"""The platforms that there are texts for, by the names that topologies and ``--platform`` give."""

from sbf_service.preparation.platforms import (
    arista_eos,
    cisco_ios,
    cisco_iosxr,
    cisco_nxos,
    dell_force10,
    hp_comware,
    hp_procurve,
    juniper_junos,
    linux_bridge,
    openvswitch,
)
from sbf_service.preparation.words import Words

PLATFORMS: dict[str, Words] = {
    "cisco_ios": cisco_ios.WORDS,
    "cisco_nxos": cisco_nxos.WORDS,
    "cisco_iosxr": cisco_iosxr.WORDS,
    "arista_eos": arista_eos.WORDS,
    "dell_force10": dell_force10.WORDS,
    "hp_comware": hp_comware.WORDS,
    "hp_procurve": hp_procurve.WORDS,
    "juniper_junos": juniper_junos.WORDS,
    "openvswitch": openvswitch.WORDS,
    "linux_bridge": linux_bridge.WORDS,
}
