"""Vendors' dialects: one small file of data for each, and the table of them for the documentation.

A module of this package that has a ``DIALECT`` is a platform, called as the module is.
"""

from importlib import import_module
from pkgutil import iter_modules

from sbf_service.drivers.switch.dialect import Commands, Dialect


def _load_built_in() -> dict[str, Dialect]:
    modules = {one.name: import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)}
    return {name: module.DIALECT for name, module in modules.items() if hasattr(module, "DIALECT")}


DIALECTS: dict[str, Dialect] = _load_built_in()


def render_dialects() -> str:
    """Return what each built-in platform is told, in Markdown."""
    return "\n".join(_section(name, dialect) for name, dialect in DIALECTS.items())


def _section(name: str, dialect: Dialect) -> str:
    rows = {
        "read": dialect.show,
        "read where that is refused": tuple(one for commands in dialect.instead.values() for one in commands),
        "create a VLAN": dialect.create,
        "delete": dialect.delete,
        "set an empty list, read back before all else": dialect.prepare,
        "make a port a trunk": dialect.trunk,
        "allow on a port": dialect.allow,
        "remove from a port": dialect.remove,
        "remove the last": dialect.empty,
        "put untagged on an access port": dialect.access,
        "take an access port out of all": tuple(line for lines in dialect.vacate for line in lines),
        "save": dialect.save,
        "it then prints (a pattern)": (dialect.saved.pattern,),
        "ask for neighbours": (dialect.lldp.show,) if dialect.lldp else (),
    }
    told = "".join(f"| {what} | {_code(lines)} |\n" for what, lines in rows.items() if lines)
    return f"## `{name}`: {dialect.title}\n\n| to | it is told |\n|---|---|\n{told}"


def _code(lines: Commands) -> str:
    return " / ".join(f"`{line}`".replace("|", "\\|") for line in lines)
