"""Dell SmartFabric OS10: the plain ``allowed vlan`` adds.

Where the words come from: ``write memory`` and ``copy running-configuration startup-configuration``, which print
nothing on success, from the OS10 user guide. No recording of a failed save was found: the failures have the form of
OS10's other errors ("% Error: …"). Ports are access ports of VLAN 1, up.
"""

from collections.abc import Callable
from typing import ClassVar

from emulators import lists
from emulators.grammar import says
from emulators.industry import Industry
from emulators.switch import Port, Rejected, Session


class DellOs10(Industry):
    """An S4148. A trunk carries nothing tagged until it is told."""

    platform = "dell_os10"
    port_names = (*(f"ethernet1/1/{n}" for n in range(1, 9)), "port-channel1")
    new_port: ClassVar[Callable[[], Port]] = lambda: Port(allowed=set())
    first_mode = "exec"
    modes: ClassVar = {"config": "(config)", "vlan": "(conf-if-vl-{about})", "interface": "(conf-if-{about})"}
    unauthorized = "% Error: Unauthorized."
    saved = ""
    save_failures: ClassVar = {
        "no space": "% Error: No space left on device\n",
        "busy": "% Error: Configuration is locked by another session.\n",
        "permission": "% Error: Unauthorized.\n",
    }

    def become_trunk(self, port: Port, allowed: set[int] | None) -> None:
        port.mode, port.allowed = "trunk", set(self.running.vlans) if allowed is None else allowed

    def invalid(self, session: Session, line: str) -> str:
        return "% Error: Unrecognized command."

    @says("exec", "copy running-configuration startup-configuration", "write memory")
    def write_memory(self, session: Session) -> None:
        self.store(session)

    @says("config", "interface vlan <number>")
    @says("config", "interface range vlan <list>")
    def vlan(self, session: Session, text: str) -> None:
        numbers = sorted(self.numbers(text))
        session.enter("vlan", *map(str, numbers))
        for number in numbers:
            self.running.vlans.setdefault(number, "")

    @says("config", "no interface vlan <number>")
    def no_vlan(self, session: Session, text: str) -> None:
        (number,) = self.numbers(text)
        if self.running.vlans.pop(number, None) is None:
            raise Rejected("% Error: Interface does not exist.")

    @says("vlan", "description <text...>")
    def vlan_description(self, session: Session, text: str) -> None:
        for number in session.about:
            self.running.vlans[int(number)] = text

    @says("interface", "switchport mode <mode>")
    def switchport_mode(self, session: Session, mode: str) -> None:
        for port in session.ports:
            port.mode = mode

    @says("interface", "no switchport access vlan")
    def no_access(self, session: Session) -> None:
        for port in session.ports:
            port.native = 1

    @says("interface", "switchport access vlan <number>")
    def native(self, session: Session, number: str) -> None:
        for port in session.ports:
            port.native = int(number)

    @says("interface", "switchport trunk allowed vlan <list>")
    def allow(self, session: Session, text: str) -> None:
        for port in session.ports:
            if port.mode != "trunk":
                raise Rejected("% Error: Port is not in trunk mode.")
            port.allowed |= self.numbers(text)  # type: ignore[operator]

    @says("interface", "no switchport trunk allowed vlan <list>")
    def disallow(self, session: Session, text: str) -> None:
        for port in session.ports:
            port.allowed -= self.numbers(text)  # type: ignore[operator]

    def numbers(self, text: str) -> set[int]:
        try:
            return lists.parse(text)
        except ValueError:
            raise Rejected("% Error: Illegal parameter.") from None

    @says("exec", "show running-configuration", "show running-configuration interface")
    def show_interfaces(self, session: Session) -> None:
        session.say(self.running_config())

    @says("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: Session) -> None:
        session.say(self.neighbours())

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
            rows += [f" switchport trunk allowed vlan {lists.written(port.allowed)}"] if port.allowed else []
        return "\n".join(rows)
