"""Plug-ins that were written for version 0.2 import ``sbf_service.drivers.switch.dialects.cisco_ios`` by this path."""

from sbf_service.drivers.switch.dialects.cisco_ios import LLDP, PORTS

__all__ = ["LLDP", "PORTS"]
