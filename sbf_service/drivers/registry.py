"""All platforms, by the name that a topology gives in ``platform``: those built in, and those of plug-ins."""

from collections.abc import Callable

from sbf_service.drivers import candidates, dialects, linux_bridge, openvswitch, plugins
from sbf_service.drivers.candidate import CandidateSession, CandidateSwitch, CandidateWords
from sbf_service.drivers.command_line import CommandLineSwitch
from sbf_service.drivers.dialects.dialect import Dialect
from sbf_service.drivers.driver import DriverFacts, Login, Platform
from sbf_service.drivers.napalm_eos import EosSession
from sbf_service.drivers.napalm_iosxr import XrSession
from sbf_service.drivers.napalm_junos import JunosSession
from sbf_service.drivers.netmiko_line import NetmikoLine
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.vlans import VlanSet


def _linux_bridge(login: Login) -> linux_bridge.LinuxBridge:
    return linux_bridge.LinuxBridge(login.device.name, NetmikoLine(login, "linux"))


def _openvswitch(login: Login) -> openvswitch.OpenVSwitch:
    return openvswitch.OpenVSwitch(login.device.name, NetmikoLine(login, "linux"))


def _spoken(dialect: Dialect) -> Platform:
    def driver(login: Login) -> CommandLineSwitch:
        line = NetmikoLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineSwitch(login.device.name, dialect, line)

    return Platform(
        DriverFacts(reserved=dialect.reserved, access=bool(dialect.access)), driver, dialect.ports.canonical
    )


SESSIONS: dict[str, Callable[[Login], CandidateSession]] = {
    "juniper_junos": JunosSession,
    "arista_eapi": EosSession,
    "cisco_iosxr": XrSession,
}


def _committed(name: str, words: CandidateWords) -> Platform:
    def driver(login: Login) -> CandidateSwitch:
        return CandidateSwitch(login.device.name, words, SESSIONS[name](login))

    return Platform(words.facts, driver, words.ports.canonical)


PLATFORMS: dict[str, Platform] = {
    "linux_bridge": Platform(linux_bridge.FACTS, _linux_bridge),
    "openvswitch": Platform(openvswitch.FACTS, _openvswitch),
    **{name: _spoken(dialect) for name, dialect in dialects.DIALECTS.items()},
    **{name: _committed(name, words) for name, words in candidates.WORDS.items()},
}


def plugged() -> tuple[plugins.Plugin, ...]:
    """Return the plug-ins of this installation, those that cannot be used among them."""
    return plugins.installed(frozenset(PLATFORMS))


def dialect_of(platform: str) -> Dialect | None:
    """Return a platform's dialect, built in or from a plug-in; None for a platform that has none."""
    found = dialects.DIALECTS.get(platform)
    if found is None and platform not in PLATFORMS:
        return next((one.dialect for one in plugged() if one.platform == platform), None)
    return found


def platform_of(switch: Switch) -> Platform:
    """Find a switch's platform. Raise BadInput that lists the known ones, and plug-ins that cannot be used."""
    found = PLATFORMS.get(switch.platform)
    if found is not None:
        return found
    dialect = dialect_of(switch.platform)
    if dialect is None:
        raise BadInput(f"switch {switch.name}: {unknown(switch.platform)}")
    return _spoken(dialect)


def unknown(platform: str) -> str:
    """Return the message for an unknown platform; it lists the known ones, and plug-ins that cannot be used."""
    expected = f"expected a known platform ({', '.join(platform_names())}), got {platform}"
    return "; ".join([expected, *(str(one) for one in plugged() if one.fault)])


def platform_names() -> tuple[str, ...]:
    """Return the names of all platforms that a topology may have, those of plug-ins among them."""
    return tuple(sorted([*PLATFORMS, *(one.platform for one in plugged() if one.dialect)]))


def reserved_by(switch: Switch) -> VlanSet:
    """Say which numbers a switch keeps for itself."""
    return platform_of(switch).facts.reserved


def table() -> str:
    """Return every built-in platform with its facts, then what each is told, in Markdown."""
    rows = [
        f"| `{name}` | {platform.facts.reserved} | {_abilities(platform)} |" for name, platform in PLATFORMS.items()
    ]
    head = "| platform | numbers it keeps for itself | more than line by line |\n|---|---|---|\n"
    return f"{head}{chr(10).join(rows)}\n\n{dialects.table()}\n{candidates.table()}"


def _abilities(platform: Platform) -> str:
    facts = platform.facts
    able = {
        "atomic commit": facts.atomic,
        "confirm timer": facts.confirm_timer,
        "translation": facts.translation,
        "access ports": facts.access,
    }
    return ", ".join(name for name, has in able.items() if has) or "no"
