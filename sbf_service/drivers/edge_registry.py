"""All platforms of provider edges, by the name that a topology gives in ``platform``."""

from sbf_service.drivers.edge import EdgePlatform
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Edge

EDGE_PLATFORMS: dict[str, EdgePlatform] = {}


def edge_platform_of(edge: Edge) -> EdgePlatform:
    """Find an edge's platform; raises BadInput that lists the known ones."""
    found = EDGE_PLATFORMS.get(edge.platform)
    if found is None:
        known = ", ".join(sorted(EDGE_PLATFORMS)) or "none"
        raise BadInput(f"edge {edge.name}: expected a known platform ({known}), got {edge.platform}")
    return found


def table() -> str:
    """Write every platform of provider edges with its facts, in Markdown."""
    head = "| platform | transports | numbers it keeps for itself | more than line by line |\n|---|---|---|---|\n"
    return head + "".join(_row(name, platform) for name, platform in EDGE_PLATFORMS.items())


def _row(name: str, platform: EdgePlatform) -> str:
    facts = platform.facts
    able = {"atomic commit": facts.atomic, "confirm timer": facts.confirm_timer}
    more = ", ".join(what for what, has in able.items() if has) or "no"
    return f"| `{name}` | {', '.join(sorted(facts.kinds))} | {facts.reserved} | {more} |\n"
