"""Texts of the preparation sheets for HP and H3C Comware.

Source: H3C's configuration guides (S5830V2, S7500E). According to these guides, ``qinq enable`` tags frames with the
port's VLAN ID and needs an MTU of at least 1504 bytes. The default ethertype is 0x8100. ``vlan 100 to 199`` creates a
range of VLANs; by default, only VLAN 1 exists. Not checked on a device: ``jumboframe enable 9216`` and ``undo stp
enable``.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="HP Comware",
    uplink=("interface {uplink}", "jumboframe enable 9216", "quit"),
    tunnel=(
        "system-view",
        "vlan {s_tag}",
        "name virtcloud-{transport}",
        "quit",
        "interface {port}",
        "description virtcloud {site}",
        "port link-type access",
        "port access vlan {s_tag}",
        "qinq enable",
        "jumboframe enable 9216",
        "undo stp enable",
        "quit",
        "interface {core_port}",
        "port link-type trunk",
        "port trunk permit vlan {s_tag}",
        "qinq ethernet-type service-tag 88a8",
        "jumboframe enable 9216",
        "return",
        "save force",
    ),
    passing=(
        "system-view",
        "interface {port}",
        "description virtcloud {site}",
        "port link-type trunk",
        "undo port trunk permit vlan 1",
        "port trunk permit vlan {vlans}",
        "jumboframe enable 9216",
        "undo stp enable",
        "return",
        "save force",
    ),
    notes=(
        (
            "A trunk with the site's VLANs passes only the frames of existing VLANs. First create the missing VLANs in "
            "the system view, one range in each line: 'vlan FIRST to LAST'."
        ),
        (
            "The line 'qinq ethernet-type service-tag' changes the outer ethertype from 0x8100 to 0x88a8. Omit this "
            "line if the next device does not support 0x88a8."
        ),
    ),
)
