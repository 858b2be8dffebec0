"""Texts of the preparation sheets for Force10 FTOS and Dell OS9.

Source: Dell's configuration guides (S4048-ON, S6000-ON: "Service Provider Bridging") for the tunnel and its ethertype
0x9100. Not checked on a device: the line for the MTU.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Force10 FTOS, Dell OS9",
    uplink=("interface {uplink}", "mtu 9216", "exit"),
    tunnel=(
        "configure terminal",
        "interface {port}",
        "description virtcloud {site}",
        "mtu 9216",
        "switchport",
        "vlan-stack access",
        "no shutdown",
        "exit",
        "interface {core_port}",
        "mtu 9216",
        "switchport",
        "vlan-stack trunk",
        "no shutdown",
        "exit",
        "interface vlan {s_tag}",
        "vlan-stack compatible",
        "member {port}",
        "member {core_port}",
        "end",
        "write memory",
    ),
    notes=(
        (
            "The outer ethertype is 0x9100, not 0x88a8 or 0x8100. If the next device on the path is of another vendor, "
            "set the same ethertype on both devices ('vlan-stack protocol-type' on this device): a device "
            "silently drops frames with another ethertype."
        ),
        "Do not enable spanning tree or protocol tunnelling on the stacked VLAN: each site has its own spanning tree.",
        "Dell advises against the same MAC address in two customer VLANs of one stacked VLAN.",
    ),
)
