"""Emulated switches for tests: stateful command lines and configuration protocols on the loopback interface.

The switches emulate state, modes, prompts, error messages, paging, slowness and session limits, as described by public
documentation and recorded sessions. No emulated switch was compared with a device. A test that needs a switch:

    with emulate("cisco_ios", slowness=0.3) as switch:
        ... connect to switch.address as switch.username with switch.password ...
"""

from contextlib import AbstractContextManager
from importlib import import_module
from pkgutil import iter_modules

from emulators import eapi_server
from emulators.arista_eapi import AristaEapi
from emulators.ssh_server import listening
from emulators.switch_device import EmulatedSwitch
from sbf_service.drivers import registry
from sbf_service.drivers.switch.dialects import DIALECTS


def _emulated(platform: str) -> type[EmulatedSwitch]:
    kinds = vars(import_module(f"{__name__}.{platform}")).values()
    return next(one for one in kinds if isinstance(one, type) and vars(one).get("platform") == platform)


EMULATED_PLATFORMS: dict[str, type[EmulatedSwitch]] = {
    one.name: _emulated(one.name) for one in iter_modules(__path__) if one.name in registry.SWITCH_PLATFORMS
}
"""The class of each platform. The module of a class has the name of the platform."""
OPEN_BY_LIST = tuple(
    name
    for name in EMULATED_PLATFORMS
    if name in ("arista_eapi", "juniper_junos") or (name in DIALECTS and DIALECTS[name].prepare)
)
"""Platforms where a trunk without a list carries every VLAN."""


def emulate(platform: str, **options: object) -> AbstractContextManager[EmulatedSwitch]:
    """Run a switch while the context lasts, with the options of its class."""
    switch = EMULATED_PLATFORMS[platform](**options)  # type: ignore[arg-type]
    return eapi_server.listening(switch) if isinstance(switch, AristaEapi) else listening(switch)
