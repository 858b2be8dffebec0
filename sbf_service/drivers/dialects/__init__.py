"""Vendors' dialects: one small file of data for each, and the table of them for the documentation."""

from sbf_service.drivers.dialects import (
    arista_eos,
    aruba_aoscx,
    cisco_ios,
    cisco_nxos,
    dell_force10,
    dell_os10,
    hp_comware,
    hp_procurve,
    sonic,
)
from sbf_service.drivers.dialects.dialect import Dialect, Lines

DIALECTS: dict[str, Dialect] = {
    "cisco_ios": cisco_ios.DIALECT,
    "cisco_nxos": cisco_nxos.DIALECT,
    "arista_eos": arista_eos.DIALECT,
    "dell_force10": dell_force10.DIALECT,
    "dell_os10": dell_os10.DIALECT,
    "hp_procurve": hp_procurve.DIALECT,
    "aruba_aoscx": aruba_aoscx.DIALECT,
    "hp_comware": hp_comware.DIALECT,
    "sonic": sonic.DIALECT,
}


def table() -> str:
    """Write what each platform is told, in Markdown."""
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


def _code(lines: Lines) -> str:
    return " / ".join(f"`{line}`".replace("|", "\\|") for line in lines)
