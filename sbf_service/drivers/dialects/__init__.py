"""Plug-ins that were written for version 0.2 import the plug-in interface from this package.

New plug-ins import from ``sbf_service.drivers.switch`` (docs/how-to/add-a-switch-platform.md).
"""

from sbf_service.drivers.switch.dialects import DIALECTS

__all__ = ["DIALECTS"]
