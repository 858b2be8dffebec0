"""The preparation sheets of a site. Pure.

Each attachment has a sheet for the site's uplink, and a sheet for the provider edge or backbone device at its other
end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from sbf_service.domain.wanted import find_edge_peers
from sbf_service.drivers.registry import find_dialect
from sbf_service.drivers.switch.dialect import Commands
from sbf_service.preparation.platforms import PLATFORMS
from sbf_service.preparation.templates import (
    FRAME_SIZE_NOTE,
    LABELS_NOTE,
    NO_OTHER_DEVICES_NOTE,
    SPANNING_TREES_NOTE,
    UNUSED_PORT_NOTE,
    PlatformTemplates,
    describe_service,
    fill_templates,
)
from virtcloud.model.element import Edge, Switch
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.site import PreparationSheet, PreparationSide, SitePreparation
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Attachment, Site
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

PLATFORM_ALIASES = {
    "linux_edge": "linux_bridge",
    "cisco_iosxe": "cisco_ios",
    "arista_eapi": "arista_eos",
}
"""Platforms whose sheets use the texts and the dialect of another platform."""


@dataclass(frozen=True, slots=True)
class BackboneDevice:
    """The backbone's device, as the administrators describe it, for all transports or for ``transport``."""

    platform: str | None = None
    port: str | None = None
    core_port: str | None = None
    transport: Name | None = None


@dataclass(frozen=True, slots=True)
class _AttachmentContext:
    """One attachment of a site, with the values that its sheets need.

    ``known`` maps placeholders of the templates to values from the topology or the options.
    """

    topology: Topology
    site: Site
    attachment: Attachment
    transport: Transport
    vlans: VlanSet
    backbone: BackboneDevice
    known: Mapping[str, object] = field(default_factory=dict)


def make_sheets(topology: Topology, site: Site, vlans: VlanSet, backbone: BackboneDevice) -> SitePreparation:
    """Return all sheets of a site. The sheets for the site's uplinks come first.

    Raise BadInput if ``backbone`` contains an unknown platform, one port for two purposes, or options that have no
    effect. Raise NotFound for an unknown transport. Raise Conflict if the site has no attachment to the selected
    transports, or if the backbone's device needs a QinQ tunnel on an unsuitable platform (``no_tunnel``).
    """
    if backbone.platform is not None and backbone.platform not in PLATFORMS:
        raise BadInput(f"expected a platform of the backbone ({', '.join(sorted(PLATFORMS))}), got {backbone.platform}")
    if backbone.port is not None and backbone.port == backbone.core_port:
        raise BadInput(f"core_port: expected a port other than `port`, got {backbone.port} for both")
    contexts = [_make_context(topology, site, attachment, vlans, backbone) for attachment in site.attachments]
    if backbone.transport is not None:
        topology.transport(backbone.transport)
        contexts = [context for context in contexts if context.transport.name == backbone.transport]
    if not contexts:
        expected = f"transport {backbone.transport}" if backbone.transport else "any transport"
        raise Conflict(f"site {site.name} is not attached to {expected}: add an attachment to the site in the topology")
    _check_options_used(site, contexts, backbone)
    sheets = [*map(_make_uplink_sheet, contexts), *map(_make_other_side, contexts)]
    distinct = tuple(sheet for index, sheet in enumerate(sheets) if sheet not in sheets[:index])
    return SitePreparation(site=site.name, sheets=distinct)


def _check_options_used(site: Site, contexts: list[_AttachmentContext], backbone: BackboneDevice) -> None:
    options = [name for name, value in (("platform", backbone.platform), ("port", backbone.port)) if value is not None]
    if options and all(context.transport.on_edges for context in contexts):
        edges = ", ".join(sorted({str(context.attachment.port.element) for context in contexts}))
        raise BadInput(
            f"{' and '.join(options)}: expected none, because site {site.name} is attached at provider edges only "
            f"({edges}), and the topology contains their platforms and ports"
        )


def _make_context(
    topology: Topology, site: Site, attachment: Attachment, vlans: VlanSet, backbone: BackboneDevice
) -> _AttachmentContext:
    transport = topology.transport(attachment.transport)
    values = {
        "site": site.name,
        "transport": transport.name,
        "s_tag": transport.s_tag,
        "asn": transport.asn,
        "vlans": _format_vlans(vlans, backbone.platform),
        "port": backbone.port,
        "core_port": backbone.core_port,
        "bridge": f"br{transport.s_tag}" if transport.s_tag else None,
    }
    known = {placeholder: value for placeholder, value in values.items() if value is not None}
    return _AttachmentContext(topology, site, attachment, transport, vlans, backbone, known)


def _format_vlans(vlans: VlanSet, platform: str | None) -> str | None:
    dialect = find_dialect(platform or "")
    return (dialect.format_ranges(vlans.ranges()) if dialect else str(vlans)) or None


def _make_uplink_sheet(context: _AttachmentContext) -> PreparationSheet:
    """Return the sheet for the site's uplink, which is always a port of a switch.

    At an edge's port, the uplink is the linked port of the switch.
    """
    port = context.attachment.port
    if isinstance(context.topology.element(port.element), Edge):
        port = context.topology.peers[port]
    switch = context.topology.element(port.element)
    if not isinstance(switch, Switch):
        raise TypeError(f"{port} is not a switch's port")
    templates = _format_uplink_lines(PLATFORM_ALIASES.get(switch.platform, switch.platform))
    lines = fill_templates(templates, {"uplink": port.port})
    notes = (
        UNUSED_PORT_NOTE,
        *_note_no_template(templates, switch.platform),
        *_note_optional_lines(switch.platform, lines.lines),
        FRAME_SIZE_NOTE,
    )
    return PreparationSheet(
        side=PreparationSide.SITE, device=str(port), platform=switch.platform, lines=lines.lines, notes=notes
    )


def _format_uplink_lines(platform: str) -> Commands:
    texts, dialect = PLATFORMS.get(platform, PlatformTemplates(title=platform)), find_dialect(platform)
    if dialect is None:
        return texts.uplink
    prepared = tuple(line.replace("{port}", "{uplink}") for line in (*dialect.prepare, *dialect.trunk))
    return (*dialect.configure, *prepared, *texts.uplink, *dialect.leave, *dialect.save)


def _note_optional_lines(platform: str, lines: Commands) -> Commands:
    dialect = find_dialect(PLATFORM_ALIASES.get(platform, platform))
    optional = [line for line in lines if dialect is not None and line in dialect.may_fail]
    if not optional:
        return ()
    return (f"Some models refuse {' and '.join(map(repr, optional))}: continue with the next line.",)


def _make_other_side(context: _AttachmentContext) -> PreparationSheet:
    edge = context.topology.element(context.attachment.port.element)
    return _make_edge_sheet(context, edge) if isinstance(edge, Edge) else _make_backbone_sheet(context)


def _make_edge_sheet(context: _AttachmentContext, edge: Edge) -> PreparationSheet:
    """Return the sheet for a provider edge, where SBF creates services and attachment circuits."""
    texts = PLATFORMS.get(PLATFORM_ALIASES.get(edge.platform, edge.platform), PlatformTemplates(title=edge.platform))
    templates = {TransportKind.EVPN: texts.evpn, TransportKind.VPLS: texts.vpls}.get(
        context.transport.kind, texts.services
    )
    services_port = edge.core_port if context.transport.kind is TransportKind.QINQ else None
    values = {"ac": context.attachment.port.port, "core_port": services_port, **_list_loopback_values(edge.loopback)}
    filled = fill_templates(
        templates,
        {**context.known, **{placeholder: value for placeholder, value in values.items() if value is not None}},
        find_edge_peers(context.topology, edge.name, [context.transport])[context.transport.name],
    )
    service = describe_service(context.transport)
    requirements = f"{context.transport.name}: {service}. SBF creates and removes each cluster's service."
    labels = (LABELS_NOTE,) if context.transport.kind is TransportKind.VPLS else ()
    notes = (requirements, *_note_no_template(templates, edge.platform), FRAME_SIZE_NOTE, *labels, *texts.notes)
    return PreparationSheet(
        side=PreparationSide.BACKBONE,
        device=f"provider edge {edge.name}",
        platform=edge.platform,
        lines=filled.lines,
        notes=notes,
        to_fill=filled.to_fill,
    )


def _list_loopback_values(loopback: IPv4Address | IPv6Address | None) -> dict[str, object]:
    """Return the placeholders' values that an edge's loopback address determines.

    An IPv6 address determines no BGP identifier, which has 32 bits (RFC 6286).
    """
    if loopback is None:
        return {}
    values: dict[str, object] = {"loopback": loopback, "loopback_prefix": f"{loopback}/{loopback.max_prefixlen}"}
    if isinstance(loopback, IPv4Address):
        values |= {"ipv4_loopback": loopback, "router_id": loopback}
    return values


def _make_backbone_sheet(context: _AttachmentContext) -> PreparationSheet:
    """Return the sheet for the backbone's device; without ``--platform``, only notes about the requirements."""
    platform = context.backbone.platform
    texts = PlatformTemplates(title="any") if platform is None else PLATFORMS[platform]
    if texts.no_tunnel and context.transport.kind is TransportKind.QINQ:
        raise Conflict(f"{texts.title} as the backbone's device: {texts.no_tunnel}")
    templates = texts.tunnel if context.transport.kind is TransportKind.QINQ else texts.passing
    filled = fill_templates(templates, context.known)
    requirements = f"{context.transport.name}: {describe_service(context.transport)}."
    notes = (
        requirements,
        *(_note_no_template(templates, platform) if platform else (_note_platforms(),)),
        SPANNING_TREES_NOTE,
        NO_OTHER_DEVICES_NOTE,
        FRAME_SIZE_NOTE,
        *texts.notes,
    )
    return PreparationSheet(
        side=PreparationSide.BACKBONE,
        device=f"the backbone's device at {context.attachment.port}",
        platform=platform or "any",
        lines=filled.lines,
        notes=tuple(note.format_map(_NoteValues(context.known)) for note in notes),
        to_fill=filled.to_fill,
    )


class _NoteValues(dict[str, object]):
    """The values of a note's placeholders. A placeholder without a value is shown in angle brackets."""

    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def _note_no_template(templates: Commands, platform: str) -> Commands:
    return () if templates else (f"SBF has no lines for {platform}: configure the requirements above.",)


def _note_platforms() -> str:
    platforms = sorted(name for name, texts in PLATFORMS.items() if texts.tunnel)
    return f"To print the lines for the device, add --platform with one of these platforms: {', '.join(platforms)}."
