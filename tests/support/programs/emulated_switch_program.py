"""Run an emulated switch until the standard input ends. Print the switch's address and port at the start."""

import sys

from support.emulators import emulate, ssh_server

ssh_server.HOST = sys.argv[1]
with emulate("cisco_ios") as switch:
    print(switch.address, flush=True)  # noqa: T201
    sys.stdin.read()
