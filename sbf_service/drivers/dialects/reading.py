"""The import path and names that ``sbf_service.drivers.switch.show_output`` had in version 0.2, for plug-ins."""

from sbf_service.drivers.switch.show_output import ALLOWED_VLANS as ALLOWED
from sbf_service.drivers.switch.show_output import build_port_readings as members_seen
from sbf_service.drivers.switch.show_output import expand_port_list as spread
from sbf_service.drivers.switch.show_output import find_arguments as starting
from sbf_service.drivers.switch.show_output import parse_access_vlan as access_number
from sbf_service.drivers.switch.show_output import parse_interfaces as interfaces
from sbf_service.drivers.switch.show_output import parse_internal_vlans as used_numbers
from sbf_service.drivers.switch.show_output import parse_switchport_lines as trunk
from sbf_service.drivers.switch.show_output import parse_switchports as switchports
from sbf_service.drivers.switch.show_output import parse_use as use_of
from sbf_service.drivers.switch.show_output import parse_vlan_table as vlan_table
from sbf_service.drivers.switch.show_output import parse_vlans as vlan_set
from sbf_service.drivers.switch.show_output import parse_vlans_after as numbers_after
from sbf_service.drivers.switch.show_output import quote_first_line as beginning
from sbf_service.drivers.switch.show_output import split_blocks as blocks

__all__ = [
    "ALLOWED",
    "access_number",
    "beginning",
    "blocks",
    "interfaces",
    "members_seen",
    "numbers_after",
    "spread",
    "starting",
    "switchports",
    "trunk",
    "use_of",
    "used_numbers",
    "vlan_set",
    "vlan_table",
]
