"""Texts of the preparation sheets for HP ProCurve and Aruba-OS.

A switch of these platforms must not be the device at the backbone's edge unless its QinQ mode is set already: a change
of this mode reboots the switch and erases its configuration. Sources: public drivers and the vendor's guides.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="HP ProCurve, Aruba-OS",
    no_tunnel="changing its QinQ mode reboots the switch and erases its configuration: use another device at the "
    "backbone's edge, or a switch whose QinQ mode is set already (check with 'show qinq')",
)
