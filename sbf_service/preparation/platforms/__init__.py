"""For each platform, the texts of preparation sheets: how administrators configure uplinks and the backbone.

The keys of ``PLATFORMS`` are the platforms' names in topologies and in ``--platform``.
"""

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
from sbf_service.preparation.templates import PlatformTemplates

PLATFORMS: dict[str, PlatformTemplates] = {
    "cisco_ios": cisco_ios.TEMPLATES,
    "cisco_nxos": cisco_nxos.TEMPLATES,
    "cisco_iosxr": cisco_iosxr.TEMPLATES,
    "arista_eos": arista_eos.TEMPLATES,
    "dell_force10": dell_force10.TEMPLATES,
    "hp_comware": hp_comware.TEMPLATES,
    "hp_procurve": hp_procurve.TEMPLATES,
    "juniper_junos": juniper_junos.TEMPLATES,
    "openvswitch": openvswitch.TEMPLATES,
    "linux_bridge": linux_bridge.TEMPLATES,
}
