"""Texts of the preparation sheets for Cisco IOS and IOS-XE.

Sources: Cisco's guides "Configuring 802.1Q and Layer 2 Protocol Tunneling" (Catalyst 3560-X, 4500) for all parts of the
tunnel. Not checked on a device: VPLS, ``bpdufilter`` on a tunnel port, and the ethertype on an edge's core port.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Cisco IOS, IOS-XE",
    uplink=("system mtu 1504",),
    tunnel=(
        "configure terminal",
        "system mtu 1504",
        "vlan dot1q tag native",
        "vlan {s_tag}",
        "name virtcloud-{transport}",
        "exit",
        "interface {port}",
        "description virtcloud {site}",
        "switchport",
        "switchport access vlan {s_tag}",
        "switchport mode dot1q-tunnel",
        "no cdp enable",
        "spanning-tree bpdufilter enable",
        "exit",
        "interface {core_port}",
        "switchport trunk allowed vlan add {s_tag}",
        "end",
        "write memory",
    ),
    passing=(
        "configure terminal",
        "system mtu 1504",
        "vlan {vlans}",
        "exit",
        "interface {port}",
        "description virtcloud {site}",
        "switchport",
        "switchport trunk allowed vlan {vlans}",
        "switchport mode trunk",
        "spanning-tree bpdufilter enable",
        "end",
        "write memory",
    ),
    services=(
        "configure terminal",
        "interface {ac}",
        "mtu 9216",
        "no ip address",
        "no shutdown",
        "exit",
        "interface {core_port}",
        "dot1q tunneling ethertype 0x88A8",
        "mtu 9216",
        "no ip address",
        "no shutdown",
        "end",
        "write memory",
    ),
    vpls=(
        "configure terminal",
        "interface {ac}",
        "mtu 9216",
        "no ip address",
        "no shutdown",
        "exit",
        "interface Loopback0",
        "ip address {ipv4_loopback} 255.255.255.255",
        "exit",
        "mpls label protocol ldp",
        "mpls ldp router-id Loopback0 force",
        "interface {core_port}",
        "mpls ip",
        "mtu 9216",
        "end",
        "write memory",
    ),
    notes=(
        "On older Catalysts 'system mtu' takes effect after a reload: plan the reload.",
        (
            "The outer ethertype is 0x8100 unless the model supports another ethertype ('dot1q tunneling ethertype'); "
            "every device of the backbone on the path must use the same ethertype."
        ),
        (
            "'switchport trunk allowed vlan add' has no effect on a trunk that carries all VLANs: "
            "configure a list on the trunk first."
        ),
    ),
)
