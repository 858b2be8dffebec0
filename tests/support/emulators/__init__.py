"""Emulated switches for tests: stateful command lines and configuration protocols on the loopback interface.

The switches emulate state, modes, prompts, error messages, paging, slow output and session limits. The sources are
public documentation and recorded sessions. No emulated switch was compared with a device. Example of a test:

    with emulate("cisco_ios", slowness=0.3) as switch:
        ... connect to switch.address as switch.username with switch.password ...
"""

from contextlib import AbstractContextManager
from importlib import import_module
from pkgutil import iter_modules

from sbf_service.drivers import registry
from sbf_service.drivers.switch.dialects import DIALECTS
from support.emulators import eapi_server
from support.emulators.arista_eapi import AristaEapi
from support.emulators.ssh_server import listening
from support.emulators.switch_device import EmulatedSwitch


def _find_class(platform: str) -> type[EmulatedSwitch]:
    values = vars(import_module(f"{__name__}.{platform}")).values()
    return next(value for value in values if isinstance(value, type) and vars(value).get("platform") == platform)


EMULATED_PLATFORMS: dict[str, type[EmulatedSwitch]] = {
    module.name: _find_class(module.name)
    for module in iter_modules(__path__)
    if module.name in registry.SWITCH_PLATFORMS
}
"""The class of each platform. The module of the class has the platform's name."""
OPEN_BY_LIST = tuple(
    name
    for name in EMULATED_PLATFORMS
    if name in ("arista_eapi", "juniper_junos") or (name in DIALECTS and DIALECTS[name].prepare)
)
"""Platforms where a trunk without a list of allowed VLANs carries every VLAN."""


def emulate(platform: str, **options: object) -> AbstractContextManager[EmulatedSwitch]:
    """Run a switch during the context. ``options`` are the options of the platform's class."""
    assert platform in EMULATED_PLATFORMS, (
        f"platform {platform}: expected an emulator, tests/support/emulators/{platform}.py"
    )
    switch = EMULATED_PLATFORMS[platform](**options)  # type: ignore[arg-type]
    return eapi_server.listening(switch) if isinstance(switch, AristaEapi) else listening(switch)
