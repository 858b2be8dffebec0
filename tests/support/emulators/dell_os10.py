"""Dell SmartFabric OS10: ``switchport trunk allowed vlan LIST`` adds VLANs to the port's list.

According to the OS10 user guide, a successful save prints nothing. No recording of a failed save was found, so the
messages of failed saves have the form of OS10's other errors ("% Error: …"). By default, ports are enabled access ports
in VLAN 1.
"""

from collections.abc import Callable
from typing import ClassVar

from support.emulators import vlan_lists
from support.emulators.ios_like import IosLikeSwitch
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import EmulatedPort


class DellOs10(IosLikeSwitch):
    """An S4148. A trunk carries no tagged VLAN by default."""

    platform = "dell_os10"
    port_names = (*(f"ethernet1/1/{n}" for n in range(1, 9)), "port-channel1")
    new_port: ClassVar[Callable[[], EmulatedPort]] = lambda: EmulatedPort(allowed=set())
    first_mode = "exec"
    modes: ClassVar = {"config": "(config)", "vlan": "(conf-if-vl-{context})", "interface": "(conf-if-{context})"}
    unauthorized = "% Error: Unauthorized."
    saved = ""
    save_failures: ClassVar = {
        "no space": "% Error: No space left on device\n",
        "busy": "% Error: Configuration is locked by another session.\n",
        "permission": "% Error: Unauthorized.\n",
    }

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        port.mode, port.allowed = "trunk", set(self.running.vlans) if allowed is None else allowed

    def invalid(self, session: EmulatedSession, line: str) -> str:
        return "% Error: Unrecognized command."

    @accepts("exec", "copy running-configuration startup-configuration", "write memory")
    def write_memory(self, session: EmulatedSession) -> None:
        self.store(session)

    @accepts("config", "interface vlan <number>")
    @accepts("config", "interface range vlan <list>")
    def vlan(self, session: EmulatedSession, text: str) -> None:
        numbers = sorted(self.numbers(text))
        session.enter("vlan", *map(str, numbers))
        for number in numbers:
            self.running.vlans.setdefault(number, "")

    @accepts("config", "no interface vlan <number>")
    def no_vlan(self, session: EmulatedSession, text: str) -> None:
        (number,) = self.numbers(text)
        if self.running.vlans.pop(number, None) is None:
            raise CommandRejected("% Error: Interface does not exist.")

    @accepts("vlan", "description <text...>")
    def vlan_description(self, session: EmulatedSession, text: str) -> None:
        for number in session.context:
            self.running.vlans[int(number)] = text

    @accepts("interface", "switchport mode <mode>")
    def switchport_mode(self, session: EmulatedSession, mode: str) -> None:
        for port in session.ports:
            port.mode = mode

    @accepts("interface", "no switchport access vlan")
    def no_access(self, session: EmulatedSession) -> None:
        for port in session.ports:
            port.native = 1

    @accepts("interface", "switchport access vlan <number>")
    def native(self, session: EmulatedSession, number: str) -> None:
        for port in session.ports:
            port.native = int(number)

    @accepts("interface", "switchport trunk allowed vlan <list>")
    def allow(self, session: EmulatedSession, text: str) -> None:
        for port in session.ports:
            if port.mode != "trunk":
                raise CommandRejected("% Error: Port is not in trunk mode.")
            port.allowed |= self.numbers(text)

    @accepts("interface", "no switchport trunk allowed vlan <list>")
    def disallow(self, session: EmulatedSession, text: str) -> None:
        for port in session.ports:
            port.allowed -= self.numbers(text)

    def numbers(self, text: str) -> set[int]:
        try:
            return vlan_lists.parse(text)
        except ValueError:
            raise CommandRejected("% Error: Illegal parameter.") from None

    @accepts("exec", "show running-configuration", "show running-configuration interface")
    def show_interfaces(self, session: EmulatedSession) -> None:
        session.print_pages(self.running_config())

    @accepts("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: EmulatedSession) -> None:
        session.print_pages(self.neighbours())

    def running_config(self) -> str:
        rows = []
        for number, name in sorted(self.running.vlans.items()):
            described = [f" description {name}"] if name and number > 1 else []
            rows += ["!", f"interface vlan{number}", *described, " no shutdown"]
        rows += ["!", "interface mgmt1/1/1", " no shutdown", " ip address dhcp"]
        for name, port in self.running.ports.items():
            rows += [
                "!",
                f"interface {name}",
                " shutdown" if port.down else " no shutdown",
                *(f" {line}" for line in port.lines),
            ]
            rows += [
                *([f" switchport mode {port.mode}"] if port.mode != "access" else []),
                f" switchport access vlan {port.native}",
            ]
            rows += [f" switchport trunk allowed vlan {vlan_lists.format_list(port.allowed)}"] if port.allowed else []
        return "\n".join(rows)
