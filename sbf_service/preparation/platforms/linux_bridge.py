"""Texts of the preparation sheets for Linux bridges and FRR.

Sources: ip-link(8), bridge(8), FRR's manual (EVPN). The tests run the lines as printed.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Linux",
    uplink=(
        "ip link set {uplink} mtu 1504",
        "bridge vlan del dev {uplink} vid 1-4094",
    ),
    tunnel=(
        "ip link add {bridge} type bridge vlan_filtering 1 vlan_default_pvid 0 vlan_protocol 802.1ad",
        "ip link set {bridge} mtu 1508 up",
        "ip link set {port} mtu 1508 master {bridge} up",
        "bridge vlan add dev {port} vid {s_tag} pvid untagged",
        "ip link set {core_port} mtu 1508 master {bridge} up",
        "bridge vlan add dev {core_port} vid {s_tag}",
    ),
    services=("ip link set {core_port} mtu 1508 up",),
    evpn=(
        "ip address add {loopback_prefix} dev lo",
        "ip link set {core_port} mtu 1600 up",
        "vtysh -c 'configure terminal' \\",
        "  -c 'router bgp {asn}' \\",
        "  -c 'bgp router-id {router_id}' \\",
        "  -c 'no bgp default ipv4-unicast' \\",
        "  -c 'neighbor virtcloud peer-group' \\",
        "  -c 'neighbor virtcloud remote-as {asn}' \\",
        "  -c 'neighbor virtcloud update-source {loopback}' \\",
        "  -c 'neighbor {peer} peer-group virtcloud' \\",
        "  -c 'address-family l2vpn evpn' \\",
        "  -c 'neighbor virtcloud activate' \\",
        "  -c 'advertise-all-vni' -c 'end' -c 'write memory'",
    ),
    notes=(
        "The configuration is lost at the next boot: add these lines to your distribution's network configuration.",
    ),
)
