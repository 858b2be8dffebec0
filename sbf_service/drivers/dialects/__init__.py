"""The import paths of version 0.2, for plug-ins.

New plug-ins import from ``sbf_service.drivers.switch`` (docs/how-to/add-a-switch-platform.md).
"""

from sbf_service.drivers.switch.dialects import DIALECTS

__all__ = ["DIALECTS"]
