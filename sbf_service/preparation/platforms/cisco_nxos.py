"""Texts of the preparation sheets for Cisco NX-OS.

Source: Cisco's "Configuring Q-in-Q VLAN Tunnels" (Nexus 7000, 9000) for the tunnel. Not checked on a device: EVPN, and
``bpdufilter`` on a tunnel port.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Cisco NX-OS",
    uplink=("interface {uplink}", "mtu 9216", "exit"),
    tunnel=(
        "configure terminal",
        "vlan {s_tag}",
        "name virtcloud-{transport}",
        "exit",
        "interface {port}",
        "description virtcloud {site}",
        "switchport",
        "switchport mode dot1q-tunnel",
        "switchport access vlan {s_tag}",
        "spanning-tree bpdufilter enable",
        "mtu 9216",
        "no shutdown",
        "exit",
        "interface {core_port}",
        "switchport trunk allowed vlan add {s_tag}",
        "mtu 9216",
        "end",
        "copy running-config startup-config",
    ),
    passing=(
        "configure terminal",
        "vlan {vlans}",
        "exit",
        "interface {port}",
        "description virtcloud {site}",
        "switchport",
        "switchport trunk allowed vlan {vlans}",
        "switchport mode trunk",
        "spanning-tree bpdufilter enable",
        "mtu 9216",
        "no shutdown",
        "end",
        "copy running-config startup-config",
    ),
    evpn=(
        "configure terminal",
        "nv overlay evpn",
        "feature bgp",
        "feature nv overlay",
        "feature vn-segment-vlan-based",
        "interface loopback0",
        "ip address {ipv4_loopback}/32",
        "exit",
        "interface nve1",
        "no shutdown",
        "source-interface loopback0",
        "host-reachability protocol bgp",
        "exit",
        "router bgp {asn}",
        "router-id {ipv4_loopback}",
        "template peer virtcloud",
        "remote-as {asn}",
        "update-source loopback0",
        "address-family l2vpn evpn",
        "send-community extended",
        "exit",
        "exit",
        "neighbor {peer} inherit peer virtcloud",
        "end",
        "copy running-config startup-config",
    ),
    notes=(
        (
            "The outer ethertype is 0x8100 unless the model supports another ethertype ('switchport dot1q ethertype'); "
            "every device of the backbone on the path must use the same ethertype."
        ),
        (
            "The switch reserves VLANs 3968-4094 (older switches: 3968-4047 and 4094): do not use these VLANs as "
            "service VLANs or in a pool."
        ),
    ),
)
