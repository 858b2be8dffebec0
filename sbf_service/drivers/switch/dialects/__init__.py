"""The dialects of switches with a command line, one file for each platform.

Each module, named like its platform, contains a ``DIALECT``.
"""

from importlib import import_module
from pkgutil import iter_modules

from sbf_service.drivers.switch.dialect import Dialect, render_section

DIALECTS: dict[str, Dialect] = {
    module.name: import_module(f"{__name__}.{module.name}").DIALECT for module in iter_modules(__path__)
}


def render_dialects() -> str:
    """Return the commands of each built-in dialect in Markdown."""
    return "\n".join(_render_dialect(name, dialect) for name, dialect in DIALECTS.items())


def _render_dialect(name: str, dialect: Dialect) -> str:
    rows = {
        "read": dialect.show,
        "read, if a command above is refused": tuple(line for lines in dialect.instead.values() for line in lines),
        "create a VLAN": dialect.create,
        "delete a VLAN": dialect.delete,
        "set an empty list of allowed VLANs, which SBF reads back before any other change": dialect.prepare,
        "make a port a trunk": dialect.trunk,
        "allow VLANs on a port": dialect.allow,
        "remove VLANs from a port": dialect.remove,
        "remove VLANs from a port, if no VLAN would remain": dialect.empty,
        "put an access port into a VLAN": dialect.access,
        "remove an access port from all VLANs": tuple(line for lines in dialect.vacate for line in lines),
        "save": dialect.save,
        "output of a successful save (a pattern)": (dialect.saved.pattern,),
        "read neighbours": (dialect.lldp.show,) if dialect.lldp else (),
    }
    return render_section(f"## `{name}`: {dialect.title}", "commands", rows)
