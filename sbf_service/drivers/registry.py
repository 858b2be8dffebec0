"""All platforms of switches and provider edges. A topology contains the name of a platform in the field ``platform``.

A plug-in can add a platform of switches that SBF controls through a command line.
"""

from collections.abc import Callable, Mapping

from sbf_service.drivers.contract import (
    Backbone,
    DeviceLogin,
    EdgePlatform,
    SwitchCapabilities,
    SwitchPlatform,
)
from sbf_service.drivers.edge import dialects as edge_dialects
from sbf_service.drivers.edge import linux_edge
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.edge.edge_dialect import EdgeDialect
from sbf_service.drivers.switch import candidates, dialects, linux_bridge, openvswitch, plugins
from sbf_service.drivers.switch.candidate_switch import CandidateDialect, CandidateSession, CandidateSwitch
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialect import Dialect
from sbf_service.drivers.switch.dialects import arista_eos
from sbf_service.drivers.switch.simulated_switch import PLATFORM as SIMULATED
from sbf_service.drivers.transport.eapi import EosSession
from sbf_service.drivers.transport.netconf import IosXrSession, JunosSession
from sbf_service.drivers.transport.ssh import SshCommandLine
from virtcloud.model.element import Edge, Switch
from virtcloud.model.errors import BadInput


def _create_linux_bridge(login: DeviceLogin) -> linux_bridge.LinuxBridge:
    return linux_bridge.LinuxBridge(login.device.name, SshCommandLine(login, "linux"))


def _create_openvswitch(login: DeviceLogin) -> openvswitch.OpenVSwitch:
    return openvswitch.OpenVSwitch(login.device.name, SshCommandLine(login, "linux"))


def _command_line_platform(dialect: Dialect) -> SwitchPlatform:
    def create(login: DeviceLogin) -> CommandLineSwitch:
        line = SshCommandLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineSwitch(login.device.name, dialect, line)

    capabilities = SwitchCapabilities(reserved=dialect.reserved, access=bool(dialect.access))
    return SwitchPlatform(capabilities, create, dialect.ports.canonical, needs_address=True)


def _create_eos_session(login: DeviceLogin) -> EosSession:
    return EosSession(login, arista_eos.DIALECT, arista_eos.LLDP.show)


CANDIDATE_SESSIONS: dict[str, Callable[[DeviceLogin], CandidateSession]] = {
    "juniper_junos": JunosSession,
    "arista_eapi": _create_eos_session,
    "cisco_iosxr": IosXrSession,
}


def _candidate_platform(name: str, dialect: CandidateDialect) -> SwitchPlatform:
    def create(login: DeviceLogin) -> CandidateSwitch:
        return CandidateSwitch(login.device.name, dialect, CANDIDATE_SESSIONS[name](login))

    return SwitchPlatform(dialect.capabilities, create, dialect.ports.canonical, needs_address=True)


def _create_linux_edge(login: DeviceLogin, backbone: Backbone) -> linux_edge.LinuxEdge:
    return linux_edge.LinuxEdge(_require_edge(login), backbone, SshCommandLine(login, "linux"))


def _edge_dialect_platform(dialect: EdgeDialect) -> EdgePlatform:
    def create(login: DeviceLogin, backbone: Backbone) -> CommandLineEdge:
        line = SshCommandLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineEdge(_require_edge(login), dialect, backbone, line)

    return EdgePlatform(dialect.capabilities, create, needs_address=True)


def _require_edge(login: DeviceLogin) -> Edge:
    if not isinstance(login.device, Edge):
        raise BadInput(f"{login.device.name}: expected a provider edge, got another kind of device")
    return login.device


SWITCH_PLATFORMS: dict[str, SwitchPlatform] = {
    "linux_bridge": SwitchPlatform(linux_bridge.CAPABILITIES, _create_linux_bridge, needs_address=True),
    "openvswitch": SwitchPlatform(openvswitch.CAPABILITIES, _create_openvswitch, needs_address=True),
    **{name: _command_line_platform(dialect) for name, dialect in dialects.DIALECTS.items()},
    **{name: _candidate_platform(name, dialect) for name, dialect in candidates.CANDIDATE_DIALECTS.items()},
}
EDGE_PLATFORMS: dict[str, EdgePlatform] = {
    "linux_edge": EdgePlatform(linux_edge.CAPABILITIES, _create_linux_edge, needs_address=True),
    **{name: _edge_dialect_platform(dialect) for name, dialect in edge_dialects.EDGE_DIALECTS.items()},
}


def list_plugins() -> tuple[plugins.DialectPlugin, ...]:
    """Return the plug-ins of this installation, including plug-ins that cannot be used."""
    return plugins.load_installed_plugins(frozenset(SWITCH_PLATFORMS))


def find_dialect(platform: str) -> Dialect | None:
    """Return a platform's dialect, from SBF or a plug-in.

    Return None for an unknown platform, or a platform without a `Dialect` (such as one with a `CandidateDialect`).
    """
    dialect = dialects.DIALECTS.get(platform)
    if dialect is None and platform not in SWITCH_PLATFORMS:
        return next((plugin.dialect for plugin in list_plugins() if plugin.platform == platform), None)
    return dialect


def find_switch_platform(switch: Switch) -> SwitchPlatform:
    """Return a switch's platform.

    Raise BadInput, with the known platforms and the unusable plug-ins, for an unknown platform.
    """
    platform = SWITCH_PLATFORMS.get(switch.platform)
    if platform is not None:
        return platform
    dialect = find_dialect(switch.platform)
    if dialect is None:
        raise BadInput(f"switch {switch.name}: {describe_unknown_platform(switch.platform)}")
    return _command_line_platform(dialect)


def find_edge_platform(edge: Edge) -> EdgePlatform:
    """Return an edge's platform. Raise BadInput, with the known platforms, for an unknown platform."""
    platform = EDGE_PLATFORMS.get(edge.platform)
    if platform is None:
        known = ", ".join(sorted(EDGE_PLATFORMS)) or "none"
        raise BadInput(f"edge {edge.name}: expected a known platform ({known}), got {edge.platform}")
    return platform


def describe_unknown_platform(platform: str) -> str:
    """Return the message for an unknown platform, with the known platforms and the unusable plug-ins."""
    if platform == SIMULATED:
        return (
            f"platform {SIMULATED} exists only in 'virtcloud up', expected the platform of a real switch: name one of "
            f"{', '.join(list_platform_names())}"
        )
    expected = f"expected a known platform ({', '.join(list_platform_names())}), got {platform}"
    return "; ".join([expected, *(str(plugin) for plugin in list_plugins() if plugin.fault)])


def list_platform_names() -> tuple[str, ...]:
    """Return the names of all platforms of switches, including plug-ins."""
    return tuple(sorted([*SWITCH_PLATFORMS, *(plugin.platform for plugin in list_plugins() if plugin.dialect)]))


def render_switch_tables() -> str:
    """Return all built-in platforms with their capabilities, then the commands of each dialect, in Markdown."""
    rows = [
        f"| `{name}` | {platform.capabilities.reserved} | {_format_capabilities(platform.capabilities)} |"
        for name, platform in SWITCH_PLATFORMS.items()
    ]
    head = "| platform | reserved VLAN IDs | capabilities beyond line-by-line changes |\n|---|---|---|\n"
    tables = f"{dialects.render_dialects()}\n{candidates.render_candidate_dialects()}"
    return f"{head}{chr(10).join(rows)}\n\n{tables}"


def _format_capabilities(capabilities: SwitchCapabilities) -> str:
    return _format_flags(
        {
            "atomic commit": capabilities.atomic,
            "confirm timer": capabilities.confirm_timer,
            "translation": capabilities.translation,
            "access ports": capabilities.access,
        }
    )


def render_edge_tables() -> str:
    """Return all platforms of provider edges with their capabilities, then each dialect's commands, in Markdown."""
    head = (
        "| platform | transports | reserved VLAN IDs | capabilities beyond line-by-line changes |\n|---|---|---|---|\n"
    )
    rows = "".join(_format_edge_row(name, platform) for name, platform in EDGE_PLATFORMS.items())
    return f"{head}{rows}\n{edge_dialects.render_edge_dialects()}"


def _format_edge_row(name: str, platform: EdgePlatform) -> str:
    capabilities = platform.capabilities
    more = _format_flags({"atomic commit": capabilities.atomic, "confirm timer": capabilities.confirm_timer})
    return f"| `{name}` | {', '.join(sorted(capabilities.kinds))} | {capabilities.reserved} | {more} |\n"


def _format_flags(flags: Mapping[str, bool]) -> str:
    return ", ".join(name for name, is_set in flags.items() if is_set) or "none"
