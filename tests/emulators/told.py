"""What a platform is told, as patterns of lines for planning faults, and as other forms of its ports' names."""

import re

from emulators import PLATFORMS
from sbf_service.drivers.dialects.dialect import Lines


def vlan_line(template: Lines, vlans: str = ".*") -> str:
    """Return a pattern of the line of a template that names VLANs."""
    line = next(one for one in template if "{vlan" in one)
    return "^" + re.sub(r"\\{(vlans?|port)\\}", lambda blank: vlans if blank[1] != "port" else ".*", re.escape(line))


def short_forms(platform: str) -> tuple[str, str]:
    """Return the first two ports' names as ``Gi0/1``, and in lower case."""
    a, b = (name.replace(" ", "") for name in PLATFORMS[platform].port_names[:2])
    return re.sub(r"^([A-Za-z]{2})[A-Za-z-]*", r"\1", a), b.lower()
