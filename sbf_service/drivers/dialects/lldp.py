"""The import path and name that ``sbf_service.drivers.switch.lldp.LldpFormat`` had in version 0.2, for plug-ins."""

from sbf_service.drivers.switch.lldp import LldpFormat as Lldp

__all__ = ["Lldp"]
