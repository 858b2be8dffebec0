"""SONiC: ``config …`` and ``show …`` in a Linux shell. By default, all ports are routed ports.

Sources of the output:

- sonic-utilities (``config/main.py``, ``config/vlan.py``): the first line that ``config save`` prints; the error "Root
  privileges are required for this operation"; and the errors of ``config vlan``.
- A bug report to sonic-buildimage: the traceback of a save while another process writes the file.
- Debian: the messages of the shell and sudo.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import ClassVar

from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort, EmulatedSwitch, SwitchState
from support.emulators.terminal import Hangup

SAVES = "Running command: /usr/local/bin/sonic-cfggen -d --print-data > /etc/sonic/config_db.json\n"


class Sonic(EmulatedSwitch):
    """A whitebox switch. From release 202305 on, a port is routed until ``config switchport mode`` changes it."""

    platform = "sonic"
    port_names = (*(f"Ethernet{4 * n}" for n in range(8)), "PortChannel1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="routed", allowed=set())
    page = 0
    saving = SAVES
    saved = ""
    save_failures: ClassVar = {
        "no space": f'{SAVES}Traceback (most recent call last):\n  File "/usr/local/bin/config", line 8, in <module>\n'
        "    sys.exit(config())\nOSError: [Errno 28] No space left on device\n",
        "busy": f'{SAVES}Traceback (most recent call last):\n  File "/usr/local/bin/config", line 8, in <module>\n'
        "    sys.exit(config())\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
        "read only": f"{SAVES}/bin/sh: 1: cannot create /etc/sonic/config_db.json: Read-only file system\n",
        "root": "Root privileges are required for this operation\n",
        "permission": "sudo: a password is required\n",
    }
    unauthorized = "sudo: a password is required"
    default_name = ""

    def __init__(self, *, knows_switchport: bool = True, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.knows_switchport = knows_switchport
        self.running.vlans.pop(1, None)
        if not knows_switchport:
            for port in self.running.ports.values():
                port.mode = "trunk"
        self.startup = deepcopy(self.running)

    def factory_state(self) -> SwitchState:
        state = super().factory_state()
        state.vlans.clear()
        return state

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        port.mode, port.allowed = "trunk", set(self.running.vlans) if allowed is None else allowed

    def configure(self, *lines: str) -> None:
        silent = self.silent_session()
        for line in lines:
            silent.perform(f"sudo config {line}")

    def prompt(self, session: EmulatedSession) -> str:
        return f"{self.username}@{self.hostname}:~$ "

    def invalid(self, session: EmulatedSession, line: str) -> str:
        words = line.replace("sudo -n ", "").replace("sudo ", "").split()
        if words[0] == "config":
            usage = 'Usage: config [OPTIONS] COMMAND [ARGS]...\nTry "config -h" for help.\n'
            return f'{usage}\nError: No such command "{words[1]}".'
        return f"-bash: {words[0]}: command not found"

    @accepts("exec", "exit", "logout")
    def leave(self, session: EmulatedSession) -> None:
        raise Hangup

    @accepts("exec", "sudo -n config vlan add <number>", "sudo config vlan add <number>")
    def add(self, session: EmulatedSession, text: str) -> None:
        number = self.number(text)
        if number in self.running.vlans:
            usage = "Usage: config vlan add [OPTIONS] <vid>\nTry 'config vlan add -h' for help."
            raise CommandRejected(f"{usage}\n\nError: Vlan{number} already exists.")
        self.running.vlans[number] = ""

    @accepts("exec", "sudo -n config vlan del <number>", "sudo config vlan del <number>")
    def delete(self, session: EmulatedSession, text: str) -> None:
        number = self.number(text)
        if number not in self.running.vlans:
            raise CommandRejected(f"Error: Vlan{number} does not exist")
        if any(number in (port.native, *(port.allowed or ())) for port in self.running.ports.values()):
            raise CommandRejected(
                f"Error: VLAN ID {number} can not be removed. First remove all members assigned to this VLAN."
            )
        del self.running.vlans[number]

    @accepts("exec", "sudo -n config vlan member add <number> <port>", "sudo config vlan member add <number> <port>")
    def member_add(self, session: EmulatedSession, text: str, name: str) -> None:
        number, port = self.number(text), self.running.ports.get(name)
        if number not in self.running.vlans:
            raise CommandRejected(f"Error: Vlan{number} does not exist")
        if port is None:
            raise CommandRejected("Error: Interface name is invalid. Please enter a valid interface name!!")
        if port.mode == "routed":
            raise CommandRejected(f"Error: {name} is in routed mode!\nUse switchport mode command to change port mode")
        if number in (port.allowed or ()):
            raise CommandRejected(f"Error: {name} is already a member of Vlan{number}!")
        port.allowed |= {number}

    @accepts("exec", "sudo -n config vlan member add -u <number> <port>")
    def member_add_untagged(self, session: EmulatedSession, text: str, name: str) -> None:
        number, port = self.number(text), self.running.ports[name]
        if number not in self.running.vlans:
            raise CommandRejected(f"Error: Vlan{number} does not exist")
        if self.knows_switchport and port.mode != "access":
            raise CommandRejected(
                f"Error: {name} is in {port.mode} mode!\nUse switchport mode command to change port mode"
            )
        if port.native in self.running.vlans or port.allowed:
            raise CommandRejected(f"Error: {name} is already untagged member!")
        port.native = number

    def is_access(self, port: EmulatedPort) -> bool:
        return not port.allowed

    @accepts("exec", "sudo -n config vlan member del <number> <port>", "sudo config vlan member del <number> <port>")
    def member_del(self, session: EmulatedSession, text: str, name: str) -> None:
        number, port = self.number(text), self.running.ports.get(name)
        if port is not None and port.native == number:
            port.native = 1
            return
        if port is None or number not in (port.allowed or ()):
            raise CommandRejected(f"Error: {name} is not a member of Vlan{number}")
        port.allowed -= {number}

    @accepts("exec", "sudo -n config switchport mode <mode> <port>", "sudo config switchport mode <mode> <port>")
    def switchport_mode(self, session: EmulatedSession, mode: str, name: str) -> None:
        if not self.knows_switchport:
            raise CommandRejected("")
        if self.running.ports[name].mode == mode:
            raise CommandRejected(f"Error: {name} is already in {mode} mode")
        if mode == "access" and self.running.ports[name].allowed:
            raise CommandRejected(
                f"Error: {name} is in {self.running.ports[name].mode} mode and have tagged member(s)."
            )
        self.running.ports[name].mode = mode

    @accepts("exec", "sudo -n config save -y", "sudo config save -y")
    def config_save(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("exec", "show vlan config")
    def show_vlan_config(self, session: EmulatedSession) -> None:
        rows = [("Name", "VID", "Member", "Mode")]
        for number in sorted(self.running.vlans):
            members = [name for name, port in self.running.ports.items() if number in (port.allowed or ())]
            found = [(name, "tagged") for name in members]
            found += [(name, "untagged") for name, port in self.running.ports.items() if port.native == number]
            rows += [(f"Vlan{number}", str(number), *membership) for membership in found or [("", "")]]
        session.print_pages(_table(rows))

    def number(self, text: str) -> int:
        if not text.isdigit() or not 2 <= int(text) <= 4094:
            raise CommandRejected(f"Error: Invalid VLAN ID {text} (2-4094)")
        return int(text)

    @accepts("exec", "show lldp neighbors")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        vlans = [f"VLAN|Vlan{number}" for number in sorted(self.running.vlans)]
        ports = [f"PORT|{name}|{port.mode}|{sorted(port.allowed or ())}" for name, port in self.running.ports.items()]
        return "\n".join([*vlans, *ports])


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [rows[0], tuple("-" * width for width in widths), *rows[1:]]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column == 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )
