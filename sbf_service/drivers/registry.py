"""All platforms, by the name that a topology gives in ``platform``."""

from sbf_service.drivers import linux_bridge
from sbf_service.drivers.command_line import CommandLineSwitch
from sbf_service.drivers.dialects import DIALECTS
from sbf_service.drivers.dialects.dialect import Dialect
from sbf_service.drivers.driver import DriverFacts, Login, Platform
from sbf_service.drivers.netmiko_line import NetmikoLine
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Switch
from virtcloud.model.vlans import VlanSet


def _linux_bridge(login: Login) -> linux_bridge.LinuxBridge:
    return linux_bridge.LinuxBridge(login.switch.name, NetmikoLine(login, "linux"))


def _spoken(dialect: Dialect) -> Platform:
    def driver(login: Login) -> CommandLineSwitch:
        line = NetmikoLine(login, dialect.netmiko, privileged=dialect.privileged)
        return CommandLineSwitch(login.switch.name, dialect, line)

    return Platform(DriverFacts(reserved=dialect.reserved), driver)


PLATFORMS: dict[str, Platform] = {
    "linux_bridge": Platform(linux_bridge.FACTS, _linux_bridge),
    **{name: _spoken(dialect) for name, dialect in DIALECTS.items()},
}


def platform_of(switch: Switch) -> Platform:
    """Find a switch's platform; raises BadInput that lists the known ones."""
    found = PLATFORMS.get(switch.platform)
    if found is None:
        known = ", ".join(sorted(PLATFORMS))
        raise BadInput(f"switch {switch.name}: expected a known platform ({known}), got {switch.platform}")
    return found


def reserved_by(switch: Switch) -> VlanSet:
    """Say which numbers a switch keeps for itself."""
    return platform_of(switch).facts.reserved
