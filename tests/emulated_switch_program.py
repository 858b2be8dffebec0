"""Run an emulated switch at an address until the standard input ends, and print the switch's address with its port."""

import sys

from emulators import emulate, ssh_server

ssh_server.HOST = sys.argv[1]
with emulate("cisco_ios") as switch:
    print(switch.address, flush=True)  # noqa: T201
    sys.stdin.read()
