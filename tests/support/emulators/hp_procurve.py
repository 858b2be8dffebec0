"""HP ProCurve and Aruba-OS: escape sequences, "Press any key", and a question before a VLAN in use is deleted.

``write memory`` prints nothing on success (ArubaOS-Switch basic operation guide). The outputs of failed saves and the
message for a missing right are invented, because no recording was found. By default all ports are up and untagged in
VLAN 1.
"""

import re
from collections.abc import Callable, Iterable
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.ios_like import IosLikeSwitch
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort

BANNER = (
    "HP J9729A 2920-48G Switch\nSoftware revision WB.16.02\n\nCopyright (C) 1991-2016 Hewlett Packard Enterprise\n\n"
)


class HpProcurve(IosLikeSwitch):
    """A 2920 switch with at most ``max_vlans`` VLANs. On real switches, a new limit takes effect at a reboot."""

    platform = "hp_procurve"
    port_names = (*(str(n) for n in range(1, 9)), "Trk1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(mode="trunk", allowed=set())
    default_name = "DEFAULT_VLAN"
    more = "-- MORE --, next page: Space, next line: Enter, quit: Control-C"
    modes: ClassVar = {"config": "(config)", "vlan": "(vlan-{context})"}
    unauthorized = "Not enough privileges to execute this command."
    saved = ""
    save_failures: ClassVar = {
        "no space": "Unable to write the configuration to flash: insufficient space.\n",
        "busy": "Configuration is being changed by another session; not saved.\n",
        "permission": "Not enough privileges to execute this command.\n",
    }

    def __init__(self, *, max_vlans: int = 256, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.max_vlans = max_vlans

    def become_access(self, port: EmulatedPort, vlan: int) -> None:
        port.native, port.allowed = vlan, set()

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        port.allowed = set(self.running.vlans) - {port.native} if allowed is None else allowed

    def greeting(self, session: EmulatedSession) -> None:
        session.terminal.write(f"{BANNER}Press any key to continue")
        session.terminal.key()

    def prompt(self, session: EmulatedSession) -> str:
        shown = super().prompt(session)
        return f"\x1b[1;24r\x1b[24;1H{shown} \x1b[24;1H\x1b[?25h"

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return f"Invalid input: {line.rsplit(maxsplit=1)[-1]}"

    @accepts("user", "enable")
    def enable(self, session: EmulatedSession) -> None:
        if session.ask("Username: ") != self.username or session.ask("Password: ", echo=False) != self.secret:
            raise CommandRejected("Invalid password")
        session.enter("exec")

    @accepts("exec", "no page")
    def no_page(self, session: EmulatedSession) -> None:
        session.page = 0

    @accepts("config", "vlan <number>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        number = self.number(text)
        if number not in self.running.vlans and len(self.running.vlans) >= self.max_vlans:
            raise CommandRejected("Maximum number of VLANs (max-vlans) has already been reached.")
        self.running.vlans.setdefault(number, f"VLAN{number}")
        session.enter("vlan", str(number))

    @accepts("config", "vlan <number> name <text...>")
    def named(self, session: EmulatedSession, number: str, text: str) -> None:
        self.vlan(session, number)
        session.enter("config")
        self.running.vlans[int(number)] = text.strip('"')

    @accepts("vlan", "name <text...>")
    def vlan_name(self, session: EmulatedSession, text: str) -> None:
        self.running.vlans[int(session.context[0])] = text.strip('"')

    @accepts("config", "no vlan <number>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        number = self.number(text)
        if number == 1:
            raise CommandRejected("Default VLAN can not be deleted.")
        if number not in self.running.vlans:
            raise CommandRejected(f"VLAN {number} not found.")
        members = [name for name, port in self.running.ports.items() if number in (port.native, *(port.allowed or ()))]
        moved = f"The following ports will be moved to the default VLAN: {','.join(members)}"
        if members and session.ask(f"{moved}\nDo you want to continue? [y/n] ").lower() != "y":
            return
        del self.running.vlans[number]
        for port in self.running.ports.values():
            port.allowed -= {number}
            port.native = 1 if port.native == number else port.native

    @accepts("config", "vlan <number> tagged <ports>")
    def tagged(self, session: EmulatedSession, text: str, ports: str) -> None:
        for port in self.members(text, ports):
            port.allowed |= {int(text)}

    @accepts("config", "no vlan <number> tagged <ports>")
    def no_tagged(self, session: EmulatedSession, text: str, ports: str) -> None:
        for port in self.members(text, ports):
            port.allowed -= {int(text)}

    @accepts("config", "vlan <number> untagged <ports>")
    def untag(self, session: EmulatedSession, text: str, ports: str) -> None:
        for port in self.members(text, ports):
            port.native = int(text)

    @accepts("config", "no vlan <number> untagged <ports>")
    def no_untag(self, session: EmulatedSession, text: str, ports: str) -> None:
        """Remove ports from the VLAN in which they are untagged. The ports return to the default VLAN."""
        for port in self.members(text, ports):
            port.native = 1 if port.native == int(text) else port.native

    @accepts("config", "interface <ports> disable")
    def disable_ports(self, session: EmulatedSession, ports: str) -> None:
        for port in self.members("1", ports):
            port.down = True

    @accepts("config", "interface <ports> enable")
    def enable_ports(self, session: EmulatedSession, ports: str) -> None:
        for port in self.members("1", ports):
            port.down = False

    def is_access(self, port: EmulatedPort) -> bool:
        return True

    def members(self, number: str, ports: str) -> list[EmulatedPort]:
        if self.number(number) not in self.running.vlans:
            raise CommandRejected(f"VLAN {number} not found.")
        try:
            return [self.running.ports[self.port(name)] for name in ports.split(",")]
        except CommandRejected:
            raise CommandRejected(f"Module not present for port or invalid port: {ports}") from None

    def number(self, text: str) -> int:
        if not text.isdigit() or not 1 <= int(text) <= 4094:
            raise CommandRejected(f"Invalid input: {text}")
        return int(text)

    @accepts("exec", "show running-config")
    def show_running(self, session: EmulatedSession) -> None:
        head = "\nRunning configuration:\n\n; J9729A Configuration Editor; Created on release #WB.16.02\n"
        session.print_pages(head + self.running_config())

    @accepts("exec", "show lldp info remote-device <ports>")
    def show_neighbours(self, session: EmulatedSession, ports: str) -> None:
        session.print_pages(self.neighbours(ports.split(",")))

    def running_config(self) -> str:
        rows = [f'hostname "{self.hostname}"']
        rows += [
            f"interface {name}\n   {line}\n   exit" for name, port in self.running.ports.items() for line in port.lines
        ]
        rows += [f"interface {name}\n   disable\n   exit" for name, port in self.running.ports.items() if port.down]
        for number, name in sorted(self.running.vlans.items()):
            tagged = _port_list(n for n, port in self.running.ports.items() if number in (port.allowed or ()))
            untagged = _port_list(n for n, port in self.running.ports.items() if number == port.native)
            rows += [f"vlan {number}", f'   name "{name}"', *([f"   untagged {untagged}"] if untagged else [])]
            rows += [*([f"   tagged {tagged}"] if tagged else []), "   no ip address", "   exit"]
        return "\n".join(rows)


def _port_list(names: Iterable[str]) -> str:
    found = list(names)
    numbered = [int(name) for name in found if re.fullmatch(r"\d+", name)]
    return ",".join(filter(None, [vlan_lists.format_list(numbered), *(name for name in found if not name.isdigit())]))
