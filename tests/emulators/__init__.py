"""Emulated switches for tests: stateful command lines and configuration protocols on the loopback interface.

They keep state, modes, prompts, error texts, paging, slowness and session limits like the devices, as far as public
documentation and recorded sessions say; none was compared with a device. A test that needs a switch:

    with emulate("cisco_ios", slowness=0.3) as switch:
        ... connect to switch.address as switch.username with switch.password ...
"""

from contextlib import AbstractContextManager

from emulators import eapi
from emulators.arista_eapi import AristaEapi
from emulators.arista_eos import AristaEos
from emulators.aruba_aoscx import ArubaAosCx
from emulators.cisco_ios import CiscoIos
from emulators.cisco_iosxr import CiscoXr
from emulators.cisco_nxos import CiscoNxos
from emulators.dell_force10 import DellForce10
from emulators.dell_os10 import DellOs10
from emulators.hp_comware import HpComware
from emulators.hp_procurve import HpProcurve
from emulators.junos import Junos
from emulators.server import listening
from emulators.sonic import Sonic
from emulators.switch import Switch

PLATFORMS: dict[str, type[Switch]] = {
    kind.platform: kind
    for kind in (
        CiscoIos,
        CiscoNxos,
        DellForce10,
        DellOs10,
        HpProcurve,
        ArubaAosCx,
        HpComware,
        AristaEos,
        Sonic,
        Junos,
        AristaEapi,
        CiscoXr,
    )
}


def emulate(platform: str, **options: object) -> AbstractContextManager[Switch]:
    """Run a switch for as long as the context lasts; options are those of its class."""
    switch = PLATFORMS[platform](**options)  # type: ignore[arg-type]
    return eapi.listening(switch) if isinstance(switch, AristaEapi) else listening(switch)
