"""The dialects of provider edges, one file for each platform."""

from sbf_service.drivers.edge.dialects import arista_eos, cisco_iosxe, cisco_iosxr, cisco_nxos, juniper_junos
from sbf_service.drivers.edge.edge_dialect import EdgeDialect
from sbf_service.drivers.switch.dialect import Commands, render_section

EDGE_DIALECTS: dict[str, EdgeDialect] = {
    "cisco_iosxe": cisco_iosxe.DIALECT,
    "cisco_iosxr": cisco_iosxr.DIALECT,
    "juniper_junos": juniper_junos.DIALECT,
    "arista_eos": arista_eos.DIALECT,
    "cisco_nxos": cisco_nxos.DIALECT,
}


def render_edge_dialects() -> str:
    """Return the commands of each dialect in Markdown."""
    return "\n".join(_render_dialect(name, dialect) for name, dialect in EDGE_DIALECTS.items())


def _render_dialect(name: str, dialect: EdgeDialect) -> str:
    rows: dict[str, Commands] = {
        "read": dialect.show,
        "read, if a command above is refused": tuple(line for lines in dialect.instead.values() for line in lines),
        "set an empty list of allowed VLANs, which SBF reads back before any other change": dialect.prepare,
        "make a port a trunk": dialect.trunk,
    }
    for (kind, shared), recipe in dialect.recipes.items():
        service = f"{kind}, {'one service for all clusters' if shared else 'one service for each cluster'}"
        rows |= {f"{service}: {piece}": lines for piece, lines in recipe.make.items()}
    rows |= {f"remove {piece}": lines for piece, lines in dialect.unmake.items()}
    rows |= {"activate": dialect.leave, "discard": dialect.give_up, "save": dialect.save}
    rows |= {"output of a successful save (a pattern)": (dialect.saved.pattern,) if dialect.save else ()}
    return render_section(f"### `{name}`: {dialect.title}", "commands", rows)
