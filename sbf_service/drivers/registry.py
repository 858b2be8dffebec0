"""All platforms, by the name that a topology gives in ``platform``: those built in, and those of plug-ins.

All platforms of provider edges, by the name that a topology gives in ``platform``.
"""

from collections.abc import Callable

from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgePlatform, SwitchCapabilities, SwitchPlatform
from sbf_service.drivers.edge import dialects as dialects_of_edge_registry
from sbf_service.drivers.edge import linux_edge
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.edge.edge_dialect import EdgeDialect
from sbf_service.drivers.switch import candidates, dialects, linux_bridge, openvswitch, plugins
from sbf_service.drivers.switch.candidate_switch import CandidateDialect, CandidateSession, CandidateSwitch
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialect import Dialect
from sbf_service.drivers.transport.eapi import EosSession
from sbf_service.drivers.transport.netconf import IosXrSession, JunosSession
from sbf_service.drivers.transport.ssh import SshCommandLine
from virtcloud.model.element import Edge, Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.vlans import VlanSet


def _create_linux_bridge(login: DeviceLogin) -> linux_bridge.LinuxBridge:
    return linux_bridge.LinuxBridge(login.device.name, SshCommandLine(login, "linux"))


def _create_openvswitch(login: DeviceLogin) -> openvswitch.OpenVSwitch:
    return openvswitch.OpenVSwitch(login.device.name, SshCommandLine(login, "linux"))


def _command_line_platform(dialect: Dialect) -> SwitchPlatform:
    def driver(login: DeviceLogin) -> CommandLineSwitch:
        line = SshCommandLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineSwitch(login.device.name, dialect, line)

    return SwitchPlatform(
        SwitchCapabilities(reserved=dialect.reserved, access=bool(dialect.access)), driver, dialect.ports.canonical
    )


CANDIDATE_SESSIONS: dict[str, Callable[[DeviceLogin], CandidateSession]] = {
    "juniper_junos": JunosSession,
    "arista_eapi": EosSession,
    "cisco_iosxr": IosXrSession,
}


def _candidate_platform(name: str, words: CandidateDialect) -> SwitchPlatform:
    def driver(login: DeviceLogin) -> CandidateSwitch:
        return CandidateSwitch(login.device.name, words, CANDIDATE_SESSIONS[name](login))

    return SwitchPlatform(words.facts, driver, words.ports.canonical)


SWITCH_PLATFORMS: dict[str, SwitchPlatform] = {
    "linux_bridge": SwitchPlatform(linux_bridge.CAPABILITIES, _create_linux_bridge),
    "openvswitch": SwitchPlatform(openvswitch.CAPABILITIES, _create_openvswitch),
    **{name: _command_line_platform(dialect) for name, dialect in dialects.DIALECTS.items()},
    **{name: _candidate_platform(name, words) for name, words in candidates.CANDIDATE_DIALECTS.items()},
}


def list_plugins() -> tuple[plugins.DialectPlugin, ...]:
    """Return the plug-ins of this installation, those that cannot be used among them."""
    return plugins.load_installed_plugins(frozenset(SWITCH_PLATFORMS))


def find_dialect(platform: str) -> Dialect | None:
    """Return a platform's dialect, built in or from a plug-in; None for a platform that has none."""
    found = dialects.DIALECTS.get(platform)
    if found is None and platform not in SWITCH_PLATFORMS:
        return next((one.dialect for one in list_plugins() if one.platform == platform), None)
    return found


def find_switch_platform(switch: Switch) -> SwitchPlatform:
    """Find a switch's platform. Raise BadInput that lists the known ones, and plug-ins that cannot be used."""
    found = SWITCH_PLATFORMS.get(switch.platform)
    if found is not None:
        return found
    dialect = find_dialect(switch.platform)
    if dialect is None:
        raise BadInput(f"switch {switch.name}: {describe_unknown_platform(switch.platform)}")
    return _command_line_platform(dialect)


def describe_unknown_platform(platform: str) -> str:
    """Return the message for an unknown platform; it lists the known ones, and plug-ins that cannot be used."""
    expected = f"expected a known platform ({', '.join(list_platform_names())}), got {platform}"
    return "; ".join([expected, *(str(one) for one in list_plugins() if one.fault)])


def list_platform_names() -> tuple[str, ...]:
    """Return the names of all platforms that a topology may have, those of plug-ins among them."""
    return tuple(sorted([*SWITCH_PLATFORMS, *(one.platform for one in list_plugins() if one.dialect)]))


def find_reserved_vlans(switch: Switch) -> VlanSet:
    """Say which numbers a switch keeps for itself."""
    return find_switch_platform(switch).facts.reserved


def render_switch_tables() -> str:
    """Return every built-in platform with its facts, then what each is told, in Markdown."""
    rows = [
        f"| `{name}` | {platform.facts.reserved} | {_format_capabilities(platform)} |"
        for name, platform in SWITCH_PLATFORMS.items()
    ]
    head = "| platform | numbers it keeps for itself | more than line by line |\n|---|---|---|\n"
    return f"{head}{chr(10).join(rows)}\n\n{dialects.render_dialects()}\n{candidates.render_candidate_dialects()}"


def _format_capabilities(platform: SwitchPlatform) -> str:
    facts = platform.facts
    able = {
        "atomic commit": facts.atomic,
        "confirm timer": facts.confirm_timer,
        "translation": facts.translation,
        "access ports": facts.access,
    }
    return ", ".join(name for name, has in able.items() if has) or "no"


def _create_linux_edge(login: DeviceLogin, backbone: Backbone) -> linux_edge.LinuxEdge:
    return linux_edge.LinuxEdge(_require_edge(login), backbone, SshCommandLine(login, "linux"))


def _edge_dialect_platform(dialect: EdgeDialect) -> EdgePlatform:
    def driver(login: DeviceLogin, backbone: Backbone) -> CommandLineEdge:
        line = SshCommandLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineEdge(_require_edge(login), dialect, backbone, line)

    return EdgePlatform(dialect.facts, driver)


def _require_edge(login: DeviceLogin) -> Edge:
    if not isinstance(login.device, Edge):
        raise BadInput(f"{login.device.name}: expected a provider edge, got another kind of device")
    return login.device


EDGE_PLATFORMS: dict[str, EdgePlatform] = {
    "linux_edge": EdgePlatform(linux_edge.CAPABILITIES, _create_linux_edge),
    **{name: _edge_dialect_platform(dialect) for name, dialect in dialects_of_edge_registry.EDGE_DIALECTS.items()},
}


def find_edge_platform(edge: Edge) -> EdgePlatform:
    """Find an edge's platform; raises BadInput that lists the known ones."""
    found = EDGE_PLATFORMS.get(edge.platform)
    if found is None:
        known = ", ".join(sorted(EDGE_PLATFORMS)) or "none"
        raise BadInput(f"edge {edge.name}: expected a known platform ({known}), got {edge.platform}")
    return found


def render_edge_tables() -> str:
    """Write every platform of provider edges with its facts, then what each dialect says, in Markdown."""
    head = "| platform | transports | numbers it keeps for itself | more than line by line |\n|---|---|---|---|\n"
    rows = "".join(_format_edge_row(name, platform) for name, platform in EDGE_PLATFORMS.items())
    return f"{head}{rows}\n{dialects_of_edge_registry.render_edge_dialects()}"


def _format_edge_row(name: str, platform: EdgePlatform) -> str:
    facts = platform.facts
    able = {"atomic commit": facts.atomic, "confirm timer": facts.confirm_timer}
    more = ", ".join(what for what, has in able.items() if has) or "no"
    return f"| `{name}` | {', '.join(sorted(facts.kinds))} | {facts.reserved} | {more} |\n"
