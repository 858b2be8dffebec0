"""The former import path of ``sbf_service.drivers.switch.dialects.cisco_ios``."""

from sbf_service.drivers.switch.dialects.cisco_ios import LLDP, PORTS

__all__ = ["LLDP", "PORTS"]
