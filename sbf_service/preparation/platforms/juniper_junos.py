"""Texts of the preparation sheets for Juniper Junos with the enhanced layer-2 software (EX, QFX, MX).

Source: Juniper's guides on Q-in-Q tunnelling (``flexible-vlan-tagging``, ``extended-vlan-bridge``, VLAN maps). No text
was checked on a device. The least certain texts are the line with the list of tags (``vlan-id-list``), and all lines
for VPLS and EVPN.
"""

from sbf_service.preparation.templates import PlatformTemplates

CUSTOMER = (
    "set interfaces {ac} mtu 9216",
    "set interfaces {ac} flexible-vlan-tagging",
    "set interfaces {ac} encapsulation flexible-ethernet-services",
)
"""The lines for an edge's port towards the site. SBF creates a unit on this port for each cluster."""

TEMPLATES = PlatformTemplates(
    title="Juniper Junos",
    uplink=(
        "configure private",
        "set interfaces {uplink} mtu 9216",
        "delete interfaces {uplink} unit 0 family ethernet-switching",
        "set interfaces {uplink} unit 0 family ethernet-switching interface-mode trunk",
        "commit and-quit",
    ),
    tunnel=(
        "configure private",
        "set interfaces {port} description virtcloud-{site}",
        "set interfaces {port} mtu 9216",
        "set interfaces {port} flexible-vlan-tagging",
        "set interfaces {port} encapsulation extended-vlan-bridge",
        "set interfaces {port} unit {s_tag} vlan-id-list 1-4094",
        "set interfaces {port} unit {s_tag} input-vlan-map push",
        "set interfaces {port} unit {s_tag} input-vlan-map vlan-id {s_tag}",
        "set interfaces {port} unit {s_tag} output-vlan-map pop",
        "set interfaces {core_port} mtu 9216",
        "set interfaces {core_port} flexible-vlan-tagging",
        "set interfaces {core_port} encapsulation extended-vlan-bridge",
        "set interfaces {core_port} unit {s_tag} vlan-id {s_tag}",
        "set vlans virtcloud-{transport} interface {port}.{s_tag}",
        "set vlans virtcloud-{transport} interface {core_port}.{s_tag}",
        "commit confirmed 5",
        "commit and-quit",
    ),
    vpls=(
        "configure private",
        *CUSTOMER,
        "set interfaces lo0 unit 0 family inet address {ipv4_loopback}/32",
        "set interfaces {core_port} mtu 9216",
        "set interfaces {core_port} unit 0 family mpls",
        "set protocols mpls interface {core_port}.0",
        "set protocols ldp interface {core_port}.0",
        "set protocols ldp interface lo0.0",
        "commit confirmed 5",
        "commit and-quit",
    ),
    evpn=(
        "configure private",
        *CUSTOMER,
        "set interfaces lo0 unit 0 family inet address {ipv4_loopback}/32",
        "set interfaces {core_port} mtu 9216",
        "set routing-options router-id {ipv4_loopback}",
        "set routing-options autonomous-system {asn}",
        "set protocols bgp group virtcloud type internal",
        "set protocols bgp group virtcloud local-address {ipv4_loopback}",
        "set protocols bgp group virtcloud family evpn signaling",
        "set protocols bgp group virtcloud neighbor {peer}",
        "commit confirmed 5",
        "commit and-quit",
    ),
    notes=(
        "After 'commit confirmed' enter the second commit: otherwise Junos rolls back after 5 minutes.",
        "The outer ethertype is 0x8100 unless 'tag-protocol-id' is set on both sides of every link on the path.",
    ),
)
