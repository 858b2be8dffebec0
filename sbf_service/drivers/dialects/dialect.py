"""The import path and names that ``sbf_service.drivers.switch.dialect`` had in version 0.2, for plug-ins."""

from sbf_service.drivers.switch.dialect import ALL_VLANS as EVERY
from sbf_service.drivers.switch.dialect import DEFAULT_VLAN as DEFAULT
from sbf_service.drivers.switch.dialect import Commands as Lines
from sbf_service.drivers.switch.dialect import Dialect, PortNames
from sbf_service.drivers.switch.dialect import PortReading as PortSeen
from sbf_service.drivers.switch.dialect import RestorableLine as Kept
from sbf_service.drivers.switch.dialect import SwitchReading as Seen

__all__ = ["DEFAULT", "EVERY", "Dialect", "Kept", "Lines", "PortNames", "PortSeen", "Seen"]
