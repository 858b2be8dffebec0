"""Cisco NX-OS."""

from collections.abc import Callable
from typing import ClassVar

from emulators.grammar import says
from emulators.industry import TrunkLists
from emulators.switch import Port, Rejected, Session


class CiscoNxos(TrunkLists):
    """A Nexus 9000: privileged from the start, ports routed until ``switchport`` is said."""

    platform = "cisco_nxos"
    port_names = (*(f"Ethernet1/{n}" for n in range(1, 9)), "port-channel1")
    new_port: ClassVar[Callable[[], Port]] = lambda: Port(mode="routed")
    first_mode = "exec"
    modes: ClassVar = {"config": "(config)", "vlan": "(config-vlan)", "interface": "(config-if)"}
    short: ClassVar = {"Ethernet": "Eth", "port-channel": "Po"}
    reserved = range(3968, 4095)
    saved = f"[{'#' * 40}] 100%\nCopy complete, now saving to disk (please wait)...\nCopy complete."

    def invalid(self, session: Session, line: str) -> str:
        return f"{' ' * (len(self.prompt(session)) + 1)}^\n% Invalid command at '^' marker."

    @says("exec", "configure terminal")
    def configure_terminal(self, session: Session) -> None:
        session.say("Enter configuration commands, one per line. End with CNTL/Z.")
        session.enter("config")

    def creatable(self, text: str) -> set[int]:
        numbers = self.numbers(text)
        if numbers & set(self.reserved):
            raise Rejected(f"ERROR: VLAN {min(numbers & set(self.reserved))} is reserved for internal use")
        return numbers

    @says("interface", "no switchport")
    def no_switchport(self, session: Session) -> None:
        for port in session.ports:
            port.mode = "routed"

    @says("interface", "switchport mode <mode>")
    def switchport_mode(self, session: Session, mode: str) -> None:
        for port in session.ports:
            if port.mode == "routed":
                raise Rejected("ERROR: Ethernet: Port is not in Layer-2 mode")
            port.mode = mode

    @says("exec", "show system vlan reserved")
    def show_reserved(self, session: Session) -> None:
        session.say(
            "system current running vlan reservation: 3968-4094\nsystem future running vlan reservation: 3968-4094"
        )

    @says("exec", "show running-config interface")
    def show_running_interface(self, session: Session) -> None:
        head = [
            "",
            "!Command: show running-config interface",
            "!Time: Fri Nov 20 10:00:00 2026",
            "",
            "version 9.3(8) Bios:version",
            "",
        ]
        session.say("\n".join([*head, *self.interface_lines()]))

    def interface_lines(self, indent: str = "  ", default_mode: str = "access") -> list[str]:
        rows = []
        for name, port in self.running.ports.items():
            rows += ["", f"interface {name}", *(f"{indent}{line}" for line in port.lines)]
            rows += [] if port.mode == "routed" else [f"{indent}switchport"]
            rows += [] if port.mode in ("routed", default_mode) else [f"{indent}switchport mode {port.mode}"]
            untagged = "trunk native" if port.mode == "trunk" else "access"
            rows += [] if port.native == 1 else [f"{indent}switchport {untagged} vlan {port.native}"]
            rows += self.allowed_lines(indent, port.allowed) + ([f"{indent}shutdown"] if port.down else [])
        return rows

    @says("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: Session) -> None:
        session.say(self.neighbours())

    def running_config(self) -> str:
        names = [
            line for n, name in sorted(self.running.vlans.items()) if n > 1 for line in (f"vlan {n}", f"  name {name}")
        ]
        return "\n".join([f"hostname {self.hostname}", *names, *self.interface_lines()])
