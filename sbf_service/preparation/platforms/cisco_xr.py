"""Cisco IOS-XR, as a provider edge.

From memory, to be checked on a device: all of it.
"""

from sbf_service.preparation.words import Words

WORDS = Words(
    title="Cisco IOS-XR",
    vpls=(
        "configure",
        "interface Loopback0",
        "ipv4 address {loopback}/32",
        "exit",
        "mpls ldp",
        "router-id {loopback}",
        "interface {core_port}",
        "exit",
        "exit",
        "router bgp {asn}",
        "bgp router-id {loopback}",
        "address-family l2vpn vpls-vpws",
        "exit",
        "neighbor-group virtcloud",
        "remote-as {asn}",
        "update-source Loopback0",
        "address-family l2vpn vpls-vpws",
        "exit",
        "exit",
        "neighbor {peer} use neighbor-group virtcloud",
        "commit",
    ),
    notes=("The MTU of every link between edges: 4 bytes for each label and 18 for the customer's Ethernet more.",),
)
