"""All platforms of provider edges, by the name that a topology gives in ``platform``."""

from sbf_service.drivers import edges, linux_edge
from sbf_service.drivers.command_line_edge import CommandLineEdge
from sbf_service.drivers.driver import Login
from sbf_service.drivers.edge import Backbone, EdgePlatform
from sbf_service.drivers.edges.dialect import EdgeDialect
from sbf_service.drivers.netmiko_line import NetmikoLine
from virtcloud.model.element import Edge
from virtcloud.model.errors import BadInput


def _linux_edge(login: Login, backbone: Backbone) -> linux_edge.LinuxEdge:
    return linux_edge.LinuxEdge(_edge(login), backbone, NetmikoLine(login, "linux"))


def _spoken(dialect: EdgeDialect) -> EdgePlatform:
    def driver(login: Login, backbone: Backbone) -> CommandLineEdge:
        line = NetmikoLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineEdge(_edge(login), dialect, backbone, line)

    return EdgePlatform(dialect.facts, driver)


def _edge(login: Login) -> Edge:
    if not isinstance(login.device, Edge):
        raise BadInput(f"{login.device.name}: expected a provider edge, got another kind of device")
    return login.device


EDGE_PLATFORMS: dict[str, EdgePlatform] = {
    "linux_edge": EdgePlatform(linux_edge.FACTS, _linux_edge),
    **{name: _spoken(dialect) for name, dialect in edges.EDGE_DIALECTS.items()},
}


def edge_platform_of(edge: Edge) -> EdgePlatform:
    """Find an edge's platform; raises BadInput that lists the known ones."""
    found = EDGE_PLATFORMS.get(edge.platform)
    if found is None:
        known = ", ".join(sorted(EDGE_PLATFORMS)) or "none"
        raise BadInput(f"edge {edge.name}: expected a known platform ({known}), got {edge.platform}")
    return found


def table() -> str:
    """Write every platform of provider edges with its facts, then what each dialect says, in Markdown."""
    head = "| platform | transports | numbers it keeps for itself | more than line by line |\n|---|---|---|---|\n"
    rows = "".join(_row(name, platform) for name, platform in EDGE_PLATFORMS.items())
    return f"{head}{rows}\n{edges.table()}"


def _row(name: str, platform: EdgePlatform) -> str:
    facts = platform.facts
    able = {"atomic commit": facts.atomic, "confirm timer": facts.confirm_timer}
    more = ", ".join(what for what, has in able.items() if has) or "no"
    return f"| `{name}` | {', '.join(sorted(facts.kinds))} | {facts.reserved} | {more} |\n"
