"""Texts of the preparation sheets for Arista EOS.

Sources: for the ethertype, Arista's notes on EOS (configurable TPID, 4.15.2F); for the tunnel's commands, public
drivers. Not checked on a device: the EVPN parts, and frames of 9214 bytes on switched ports without configuration.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Arista EOS",
    tunnel=(
        "configure terminal",
        "vlan {s_tag}",
        "name virtcloud-{transport}",
        "exit",
        "interface {port}",
        "description virtcloud {site}",
        "switchport",
        "switchport access vlan {s_tag}",
        "switchport mode dot1q-tunnel",
        "spanning-tree bpdufilter enable",
        "no lldp transmit",
        "exit",
        "interface {core_port}",
        "switchport trunk allowed vlan add {s_tag}",
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
        "end",
        "copy running-config startup-config",
    ),
    evpn=(
        "configure terminal",
        "service routing protocols model multi-agent",
        "interface Loopback0",
        "ip address {ipv4_loopback}/32",
        "exit",
        "interface Vxlan1",
        "vxlan source-interface Loopback0",
        "vxlan udp-port 4789",
        "exit",
        "router bgp {asn}",
        "router-id {ipv4_loopback}",
        "neighbor virtcloud peer group",
        "neighbor virtcloud remote-as {asn}",
        "neighbor virtcloud update-source Loopback0",
        "neighbor virtcloud send-community extended",
        "neighbor {peer} peer group virtcloud",
        "address-family evpn",
        "neighbor virtcloud activate",
        "end",
        "copy running-config startup-config",
    ),
    notes=(
        "Switched ports accept large frames without configuration; routed ports towards the backbone need 'mtu 9214'.",
        (
            "The outer ethertype is 0x8100 unless the model supports another ethertype ('switchport dot1q ethertype'); "
            "every device of the backbone on the path must use the same ethertype."
        ),
        "'service routing protocols model multi-agent' takes effect after a reload.",
    ),
)
