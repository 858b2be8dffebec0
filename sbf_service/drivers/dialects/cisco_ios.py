"""The import path that ``sbf_service.drivers.switch.dialects.cisco_ios`` had in version 0.2, for plug-ins."""

from sbf_service.drivers.switch.dialects.cisco_ios import LLDP, PORTS

__all__ = ["LLDP", "PORTS"]
