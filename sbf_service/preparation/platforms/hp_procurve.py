"""Preparation texts of HP ProCurve and Aruba-OS, which have no text for a backbone.

Sources: public drivers and the vendor's guides. Changing the QinQ mode reboots the switch and erases its configuration.
"""

from sbf_service.preparation.templates import PlatformTemplates

TEMPLATES = PlatformTemplates(
    title="HP ProCurve, Aruba-OS",
    no_tunnel="changing its QinQ mode reboots the switch and erases its configuration: use another device at the "
    "backbone's edge, or a switch whose QinQ mode is set already, after checking it with 'show qinq'",
)
