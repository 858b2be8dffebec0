"""Dialects of provider edges: one small file of data for each platform, and the table of them for the documentation."""

from sbf_service.drivers.edge.dialects import arista_eos, cisco_iosxe, cisco_iosxr, cisco_nxos, juniper_junos
from sbf_service.drivers.edge.edge_dialect import EdgeDialect
from sbf_service.drivers.switch.dialect import Commands

EDGE_DIALECTS: dict[str, EdgeDialect] = {
    "cisco_iosxe": cisco_iosxe.DIALECT,
    "cisco_iosxr": cisco_iosxr.DIALECT,
    "juniper_junos": juniper_junos.DIALECT,
    "arista_eos": arista_eos.DIALECT,
    "cisco_nxos": cisco_nxos.DIALECT,
}


def render_edge_dialects() -> str:
    """Write what each platform is told, in Markdown."""
    return "\n".join(_section(name, dialect) for name, dialect in EDGE_DIALECTS.items())


def _section(name: str, dialect: EdgeDialect) -> str:
    instead = tuple(one for commands in dialect.instead.values() for one in commands)
    rows = {
        "read": dialect.show,
        "read where that is refused": instead,
        "set an empty list, read back before all else": dialect.prepare,
    }
    rows |= {"make a port a trunk": dialect.trunk}
    for (kind, shared), recipe in dialect.recipes.items():
        what = f"{kind}, {'one service for all clusters' if shared else 'one for each cluster'}"
        rows |= {f"{what}: {piece}": lines for piece, lines in recipe.make.items()}
    rows |= {f"take away {piece}": lines for piece, lines in dialect.unmake.items()}
    rows |= {"activate": dialect.leave, "throw away": dialect.give_up, "save": dialect.save}
    rows |= {"it then prints (a pattern)": (dialect.saved.pattern,) if dialect.save else ()}
    told = "".join(f"| {what} | {_code(lines)} |\n" for what, lines in rows.items() if lines)
    return f"### `{name}`: {dialect.title}\n\n| to | it is told |\n|---|---|\n{told}"


def _code(lines: Commands) -> str:
    return " / ".join(f"`{line}`".replace("|", "\\|") for line in lines)
