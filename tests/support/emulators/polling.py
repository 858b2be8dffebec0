"""Shortens the pauses of the client libraries Netmiko and ncclient.

By default, both libraries pause for tenths of a second in each session. Emulated devices answer within milliseconds, so
tests would mostly wait for these pauses.
"""

import time
from types import ModuleType, SimpleNamespace

NETMIKO_FACTOR = 0.1
"""The factor by which each of Netmiko's pauses is multiplied."""
NCCLIENT_POLL_S = 0.01


def shorten_pauses() -> None:
    """Shorten the pauses in this process. Idempotent."""
    import ncclient.transport.session  # noqa: PLC0415 - slow to load
    import netmiko.base_connection  # noqa: PLC0415
    import netmiko.cisco_base_connection  # noqa: PLC0415

    ncclient.transport.session.TICK = NCCLIENT_POLL_S
    for module in (netmiko.base_connection, netmiko.cisco_base_connection):
        _replace_sleep(module)


def _replace_sleep(module: ModuleType) -> None:
    functions = vars(time) | {"sleep": lambda seconds: time.sleep(seconds * NETMIKO_FACTOR)}
    module.__dict__["time"] = SimpleNamespace(**functions)
