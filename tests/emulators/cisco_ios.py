"""Cisco IOS and IOS-XE."""

import re
from collections.abc import Callable
from typing import ClassVar

from emulators import lists
from emulators.grammar import says
from emulators.industry import TrunkLists
from emulators.switch import Port, Rejected, Session


class CiscoIos(TrunkLists):
    """A Catalyst. VLANs come to be when their mode is left; routed ports use numbers from 1006 for themselves."""

    platform = "cisco_ios"
    port_names = (*(f"GigabitEthernet1/0/{n}" for n in range(1, 9)), "Port-channel1")
    new_port: ClassVar[Callable[[], Port]] = lambda: Port(mode="dynamic")
    denied = "% Bad secrets\n"
    saved = "Building configuration...\n[OK]"
    legacy: ClassVar = {
        1002: ("fddi-default", "act/unsup"),
        1003: ("token-ring-default", "act/unsup"),
        1004: ("fddinet-default", "act/unsup"),
        1005: ("trnet-default", "act/unsup"),
    }

    def __init__(self, *, vtp: str = "transparent", encapsulation_first: bool = False, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.vtp, self.encapsulation_first = vtp, encapsulation_first
        self.internal = {1006: "GigabitEthernet1/0/8"}

    def interface_lines(self, indent: str = " ", default_mode: str = "dynamic") -> list[str]:
        return super().interface_lines(indent, default_mode)

    def is_access(self, port: Port) -> bool:
        return port.mode in ("access", "dynamic")

    @says("exec", "configure terminal")
    def configure_terminal(self, session: Session) -> None:
        session.say("Enter configuration commands, one per line.  End with CNTL/Z.")
        session.enter("config")

    @says("config", "vlan <list>")
    def vlan(self, session: Session, text: str) -> None:
        """Remember the VLANs; they are made when the mode is left."""
        numbers = self.numbers(text)
        if numbers & set(range(1002, 1006)):
            raise Rejected(
                f"Command rejected: Bad VLAN list - VLAN ID {min(numbers & set(range(1002, 1006)))} is reserved."
            )
        session.enter("vlan", *map(str, sorted(numbers)))
        session.pending = numbers - set(self.running.vlans)

    @says("vlan", "name <text>")
    def vlan_name(self, session: Session, text: str) -> None:
        self._commit(session)
        super().vlan_name(session, text)

    def leave_mode(self, session: Session) -> None:
        self._commit(session)

    def _commit(self, session: Session) -> None:
        wanted, session.pending = session.pending, set()
        taken = wanted & set(self.internal)
        extended = {number for number in wanted if number > 1005} if self.vtp != "transparent" else set()
        for number in wanted - taken - extended:
            self.running.vlans[number] = f"VLAN{number:04}"
        if taken or extended:
            why = (
                "VLAN(s) not available in Port Manager."
                if taken
                else "Extended VLAN(s) not allowed in current VTP mode."
            )
            failed = lists.written(taken or extended)
            session.say(f"% Failed to create VLANs {failed}\n{why}\n%Failed to commit extended VLAN(s) changes.\n")

    @says("interface", "switchport trunk encapsulation <kind>")
    def encapsulation(self, session: Session, kind: str) -> None:
        if not self.encapsulation_first:
            raise Rejected("")
        for port in session.ports:
            port.lines.append(f"switchport trunk encapsulation {kind}")

    @says("interface", "switchport mode <mode>")
    def switchport_mode(self, session: Session, mode: str) -> None:
        for port in session.ports:
            if (
                mode == "trunk"
                and self.encapsulation_first
                and "switchport trunk encapsulation dot1q" not in port.lines
            ):
                raise Rejected(
                    'Command rejected: An interface whose trunk encapsulation is "Auto" '
                    'can not be configured to "trunk" mode.'
                )
            port.mode = mode

    @says("exec", "show vlan internal usage")
    def show_internal(self, session: Session) -> None:
        rows = [f"{number} {user}" for number, user in self.internal.items()]
        session.say("\n".join(["", "VLAN Usage", "---- --------------------", *rows, ""]))

    @says("exec", "show running-config | include <pattern...>")
    def show_matching(self, session: Session, pattern: str) -> None:
        session.say("\n".join(line for line in self.running_config().splitlines() if re.search(pattern, line)))

    @says("exec", "show running-config")
    def show_running(self, session: Session) -> None:
        session.say(f"Building configuration...\n\n{self.running_config()}")

    @says("exec", "show interfaces switchport")
    def show_switchport(self, session: Session) -> None:
        rows = []
        for name, port in self.running.ports.items():
            allowed = (
                "ALL" if port.allowed is None else ",\n     ".join(lists.wrapped(port.allowed, "", "", 55)) or "NONE"
            )
            named = self.running.vlans.get(port.native, "Inactive")
            rows += [
                f"Name: {name.replace('GigabitEthernet', 'Gi')}",
                "Switchport: Enabled",
                f"Administrative Mode: {port.mode}",
            ]
            rows += [f"Trunking Native Mode VLAN: {port.native} ({named})", f"Trunking VLANs Enabled: {allowed}", ""]
        session.say("\n".join(rows))

    @says("exec", "show lldp neighbors detail")
    def show_neighbours(self, session: Session) -> None:
        session.say(self.neighbours())

    def running_config(self) -> str:
        vlans = [f"vlan {number}\n name {name}\n!" for number, name in sorted(self.running.vlans.items()) if number > 1]
        head = [f"hostname {self.hostname}", "!", f"vtp mode {self.vtp}", "!"]
        return "\n".join([*head, *(vlans if self.vtp == "transparent" else []), *self.interface_lines(), "end"])
