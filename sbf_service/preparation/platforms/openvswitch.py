"""Texts of the preparation sheets for Open vSwitch.

Sources: ovs-vsctl(8), ovs-vswitchd.conf.db(5). The tests run the lines as printed.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="Open vSwitch",
    uplink=(
        "ovs-vsctl set port {uplink} vlan_mode=trunk trunks=4095",
        "ovs-vsctl set interface {uplink} mtu_request=1504",
    ),
    tunnel=(
        "ovs-vsctl set Open_vSwitch . other_config:vlan-limit=2",
        "ovs-vsctl set port {port} vlan_mode=dot1q-tunnel tag={s_tag} other_config:qinq-ethtype=802.1ad",
        "ovs-vsctl set interface {port} mtu_request=1504",
        "ovs-vsctl set port {core_port} vlan_mode=trunk",
        "ovs-vsctl add port {core_port} trunks {s_tag}",
        "ovs-vsctl set interface {core_port} mtu_request=1508",
    ),
    notes=(
        (
            "A trunk without a list of VLAN IDs carries all VLANs. If the port towards the backbone has no list, "
            "these lines create a list with the service VLAN only: first create a list with the port's other VLANs."
        ),
        "The bridge drops the sites' BPDUs unless 'other_config:forward-bpdu' is set: do not set this option.",
    ),
)
