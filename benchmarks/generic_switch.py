"""Measures how long networking-generic-switch takes to add VLANs to trunks.

Arguments: host, port, user, password, secret, ports (separated by commas), ``True`` or ``False`` (whether to reuse the
connection), and the VLANs to add. Prints the seconds of each addition as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import UUID


def main(*arguments: str) -> None:
    """Add each VLAN to the ports, and print the durations."""
    host, port, user, password, secret, ports, reuse, *vlans = arguments
    import_module("networking_generic_switch.config")
    module = import_module("networking_generic_switch.devices.netmiko_devices.cisco")
    options = {
        "device_type": "netmiko_cisco_ios",
        "host": host,
        "port": int(port),
        "username": user,
        "password": password,
        "secret": secret,
        "ngs_trunk_ports": ports,
        "ngs_ssh_reuse_connection": reuse,
    }
    switch: Any = module.CiscoIos(options)
    print(json.dumps([_timed(switch.add_network, vlan) for vlan in vlans]))  # noqa: T201 - a command's output


def _timed(change: Callable[[int, str], object], vlan: str) -> float:
    started = time.monotonic()
    change(int(vlan), str(UUID(int=int(vlan))))
    return time.monotonic() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
