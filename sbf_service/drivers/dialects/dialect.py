"""The former import path and names of ``sbf_service.drivers.switch.dialect``."""

from sbf_service.drivers.switch.dialect import ALL_VLANS as EVERY
from sbf_service.drivers.switch.dialect import DEFAULT_VLAN as DEFAULT
from sbf_service.drivers.switch.dialect import Commands as Lines
from sbf_service.drivers.switch.dialect import Dialect, PortNames
from sbf_service.drivers.switch.dialect import PortReading as PortSeen
from sbf_service.drivers.switch.dialect import RestorableLine as Kept
from sbf_service.drivers.switch.dialect import SwitchReading as Seen

__all__ = ["DEFAULT", "EVERY", "Dialect", "Kept", "Lines", "PortNames", "PortSeen", "Seen"]
