"""The former import paths of the plug-in interface, for plug-ins that were written for version 0.2.

New plug-ins import from ``sbf_service.drivers.switch`` (docs/how-to/add-a-switch-platform.md).
"""

from sbf_service.drivers.switch.dialects import DIALECTS

__all__ = ["DIALECTS"]
