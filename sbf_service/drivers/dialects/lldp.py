"""The former import path and name of ``sbf_service.drivers.switch.lldp``."""

from sbf_service.drivers.switch.lldp import LldpFormat as Lldp

__all__ = ["Lldp"]
