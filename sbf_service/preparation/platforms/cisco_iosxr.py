"""Texts of the preparation sheets for Cisco IOS-XR as a provider edge.

The texts have no published source and were not checked on a device.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Cisco IOS-XR",
    vpls=(
        "configure",
        "interface Loopback0",
        "ipv4 address {ipv4_loopback}/32",
        "exit",
        "interface {ac}",
        "mtu 9216",
        "no shutdown",
        "exit",
        "mpls ldp",
        "router-id {ipv4_loopback}",
        "interface {core_port}",
        "commit",
        "end",
    ),
)
